CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)
INSERT INTO t SELECT i, 'word' || (i * 7919 % 10007), i / 3.0 FROM n;
CREATE INDEX tb ON t(b); SELECT b, count(*), sum(c) FROM t GROUP BY b ORDER BY 3 DESC LIMIT 50;
SELECT count(*) FROM t x JOIN t y ON x.b = y.b WHERE x.a < y.a AND y.b LIKE '%77%'; UPDATE t SET c = c + length(b) WHERE a % 3 = 0;
