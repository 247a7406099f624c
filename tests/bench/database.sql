-- A unit of the database workload: a fixed set of inserts and selects. `cargo xtask bench overhead` feeds sqlite3 with what stands above
-- the line "-- unit" once and with what stands below it as often as it needs. synchronous=off: the disk's mood is not what is measured.
PRAGMA synchronous = off;
PRAGMA journal_mode = memory;
CREATE TABLE item (id INTEGER PRIMARY KEY, owner INTEGER NOT NULL, price INTEGER NOT NULL, name TEXT NOT NULL);
CREATE INDEX item_owner ON item (owner);
-- unit
BEGIN;
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO item (owner, price, name)
SELECT (i * 7919) % 997, (i * 104729) % 10007, printf('item %08d', (i * 15485863) % 99999989) FROM n;
COMMIT;
SELECT owner, count(*), sum(price) FROM item WHERE owner BETWEEN 100 AND 120 GROUP BY owner;
SELECT name, max(price) FROM item WHERE owner = 17 AND name LIKE '%77%';
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
SELECT sum(price) FROM n JOIN item ON item.id = 1 + (i * 31) % 2000;
UPDATE item SET price = price + 1 WHERE owner = 400;
DELETE FROM item WHERE id > 4000;
