-- Sums over hosts that ran two builds of an image, of the image's procedures (judge::Sums).
-- Reads: facts (of the service), pairs.
SELECT image, build_old, build_new, procedure,
       SUM(w * (s_new - s_old)) AS wd,
       SUM(w * w * (s_new - s_old)) AS w2d,
       SUM(w * w * (s_new - s_old) * (s_new - s_old)) AS w2d2,
       SUM(w * s_old) AS w_old,
       COUNT(*) AS hosts,
       SUM(samples_old) AS samples_old,
       SUM(samples_new) AS samples_new
FROM (SELECT p.image, p.build_old, p.build_new, f.procedure, p.host,
             MAX(p.w) AS w,
             SUM(CASE WHEN f.build = p.build_old
                      THEN CAST(f.samples AS DOUBLE) * f.weight ELSE 0 END) / MAX(p.y_old) AS s_old,
             SUM(CASE WHEN f.build = p.build_new
                      THEN CAST(f.samples AS DOUBLE) * f.weight ELSE 0 END) / MAX(p.y_new) AS s_new,
             SUM(CASE WHEN f.build = p.build_old THEN f.samples ELSE 0 END) AS samples_old,
             SUM(CASE WHEN f.build = p.build_new THEN f.samples ELSE 0 END) AS samples_new
      FROM facts f
      JOIN pairs p ON p.service = f.service AND p.image = f.image AND p.host = f.host
      WHERE f.service = :service AND (f.build = p.build_old OR f.build = p.build_new)
      GROUP BY p.image, p.build_old, p.build_new, f.procedure, p.host) x
GROUP BY image, build_old, build_new, procedure
ORDER BY image, build_old, build_new, procedure
