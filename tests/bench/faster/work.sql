-- A shop's database: filled, asked, changed. @SEED@ chooses the data, @SIZE@ how much of it there is.
create table person(id integer primary key, name text, town integer, born integer);
create table article(id integer primary key, title text, price real, kind integer);
create table sale(id integer primary key, person integer, article integer, count integer, day integer);
create table random(n integer primary key, value integer);
with recursive r(n, value) as (
    select 1, @SEED@ union all select n + 1, (value * 1103515245 + 12345) % 2147483648 from r where n < 4000 * @SIZE@
) insert into random select n, value / 256 from r;
insert into person select n, printf('%c%c%c%x', 97 + value % 26, 97 + value / 26 % 26, 97 + value / 676 % 26, value),
    value % 97, 1930 + value % 80 from random where n <= 500 * @SIZE@;
insert into article select n, 'article ' || hex(value % 100000) || substr('abcdefghijklmnop', value % 10, 5),
    value % 10000 / 100.0, value % 13 from random where n <= 200 * @SIZE@;
insert into sale select n * 3 + part, value * 7 % (500 * @SIZE@) + 1, (value + part * 31) % (200 * @SIZE@) + 1, 1 + value % 5,
    (value / 5 + n) % 365 from random, (select 0 part union all select 1 union all select 2);
create index person_town on person(town, born);
create index sale_person on sale(person);
create index sale_article on sale(article, day);

-- Joins, groups, orders.
select sum(count * price) from sale join article on article = article.id;
select town, count(*), sum(count) from sale join person on person = person.id group by town order by 3 desc;
select kind, day / 30, sum(count * price), max(price), avg(count) from sale join article on article = article.id group by 1, 2;
select name, (select sum(count) from sale where person = person.id) as many from person order by many desc, name limit 50;
select count(*) from person where name like '%ab%' or name glob '*[xyz]?1*' or length(name) > 10;
select upper(title), lower(replace(title, 'a', 'bb')), instr(title, 'c') from article order by title;
select count(*) from (select distinct person, day from sale where count > 1);
select person, day, sum(count) over (partition by person order by day rows 3 preceding) from sale where person % 7 = 0;
with recursive chain(person, depth) as (
    select 1, 0 union select (select max(s.article) from sale s where s.person = chain.person) + 1, depth + 1 from chain where depth < 500
) select count(*), max(person) from chain;
select count(*) from sale a join sale b on a.person = b.person and a.day < b.day and a.article < b.article;
select title from article where id in (select article from sale where day between 10 and 20 group by article having sum(count) > 8);

-- Changes.
begin;
update article set price = price * 1.1 where kind in (1, 5, 8);
update sale set count = count + 1 where day % 9 = 0;
delete from sale where person in (select id from person where town between 30 and 35);
insert or replace into person select n, 'new ' || value, value % 50, 2000 + n % 20 from random where n % 5 = 0;
update person set name = name || '-' || town where born < 1950;
commit;
select json_group_array(json_object('id', id, 'name', name)) from person where town = 3;
select count(*), sum(json_extract(j, '$.v[1]')) from (select json_array(id, town) a, json_object('v', json_array(id, born, name)) j from person);
select sum(length(printf('%05d|%-10s|%.3f', id, substr(title, 3), price))) from article;
