-- Samples of a service's procedures by type of machine, whatever the build: hosts count once.
-- Reads: facts (of the service), host_weeks.
SELECT x.service, x.image, 0 AS build, x.procedure, h.machine,
       SUM(x.samples) AS samples,
       SUM(x.core_s) AS core_s,
       COUNT(*) AS hosts
FROM (SELECT service, image, procedure, host,
             SUM(samples) AS samples,
             SUM(CAST(samples AS DOUBLE) * weight) / 1e9 AS core_s
      FROM facts
      GROUP BY service, image, procedure, host) x
JOIN host_weeks h ON h.host = x.host
GROUP BY x.service, x.image, x.procedure, h.machine
ORDER BY x.service, x.image, x.procedure, h.machine
