-- Samples of a service's procedures by build and type of machine.
-- Reads: facts (of the service), host_weeks.
SELECT f.service, f.image, f.build, f.procedure, h.machine,
       SUM(f.samples) AS samples,
       SUM(CAST(f.samples AS DOUBLE) * f.weight) / 1e9 AS core_s,
       COUNT(*) AS hosts
FROM facts f JOIN host_weeks h ON h.host = f.host
GROUP BY f.service, f.image, f.build, f.procedure, h.machine
ORDER BY f.service, f.image, f.build, f.procedure, h.machine
