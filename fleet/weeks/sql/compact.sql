-- Facts of one service in a week, each procedure, build and host once.
-- Reads: facts (as ingested).
SELECT service, image, build, procedure, host,
       SUM(samples) AS samples,
       SUM(CAST(samples AS DOUBLE) * weight) / SUM(samples) AS weight
FROM facts
WHERE service = :service AND samples > 0
GROUP BY service, image, build, procedure, host
ORDER BY service, image, build, procedure, host
