-- Samples of a service's largest procedures by host.
-- Reads: facts (of the service).
SELECT service, 0 AS image, 0 AS build, procedure, host,
       SUM(samples) AS samples,
       0e0 AS weight
FROM facts
WHERE procedure IN (:procedures)
GROUP BY service, procedure, host
ORDER BY service, procedure, host
