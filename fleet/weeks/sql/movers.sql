-- Sums over hosts of a service in a week and the one before, of its procedures (judge::Sums).
-- Reads: facts and facts_before (of the service), pairs.
SELECT image, 0 AS build_old, 0 AS build_new, procedure,
       SUM(w * (s_new - s_old)) AS wd,
       SUM(w * w * (s_new - s_old)) AS w2d,
       SUM(w * w * (s_new - s_old) * (s_new - s_old)) AS w2d2,
       SUM(w * s_old) AS w_old,
       COUNT(*) AS hosts,
       SUM(samples_old) AS samples_old,
       SUM(samples_new) AS samples_new
FROM (SELECT f.image, f.procedure, f.host,
             MAX(p.w) AS w,
             SUM(f.x_old) / MAX(p.y_old) AS s_old,
             SUM(f.x_new) / MAX(p.y_new) AS s_new,
             SUM(f.samples_old) AS samples_old,
             SUM(f.samples_new) AS samples_new
      FROM (SELECT image, procedure, host,
                   CAST(samples AS DOUBLE) * weight AS x_old, 0e0 AS x_new,
                   samples AS samples_old, 0 AS samples_new
            FROM facts_before WHERE service = :service
            UNION ALL
            SELECT image, procedure, host,
                   0e0 AS x_old, CAST(samples AS DOUBLE) * weight AS x_new,
                   0 AS samples_old, samples AS samples_new
            FROM facts WHERE service = :service) f
      JOIN (SELECT host, w, y_old, y_new FROM pairs
            WHERE service = :service AND image = 0) p ON p.host = f.host
      GROUP BY f.image, f.procedure, f.host) x
GROUP BY image, procedure
ORDER BY image, procedure
