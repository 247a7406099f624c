# A server of its own with two clients, until the shell ends. postgres runs as no root.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
folder=$(mktemp -d)
trap 'setpriv --reuid=postgres --regid=postgres --clear-groups $bin/pg_ctl -D $folder/db -m immediate stop; rm -rf $folder' EXIT TERM
chown postgres $folder
run() { setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=$folder "$@"; }
cd /
run $bin/initdb -D $folder/db --no-sync >/dev/null
run $bin/pg_ctl -D $folder/db -o "-k $folder -c listen_addresses= -c fsync=off" -l $folder/log -w start
run $bin/pgbench -h $folder -i -s 2 postgres >/dev/null 2>&1
run $bin/pgbench -h $folder -c 2 -T 1000 -S postgres >/dev/null 2>&1 &
wait
