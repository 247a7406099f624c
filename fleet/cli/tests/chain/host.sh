#!/bin/sh
# A host of the fleet, in its container: host.sh STORE
#
# dcpid samples two services. Three epochs end: of the old build, of both in turns, so that what else
# the machine does is in both, and of the new one. The host pushes them to STORE. The database stays
# in /shared/db.
set -eu
store=$1
control=/run/dcpid.sock
shop() {
	for build; do dcpilabel --control $control shop /shared/"$build"/shop 120; done
}
cellar() { dcpilabel --control $control cellar /shared/cellar 60; }

PATH=/dcpi:$PATH
# The review is held against reports of the database outside of the host, where there is only the
# code that is kept, and not the files that the host names procedures by when it pushes.
printf 'overhead-budget = "off"\nepoch-length = "off"\nwhole-code = true\n' >/run/dcpid.toml
dcpid --config /run/dcpid.toml --db /shared/db --control $control --event cpu-clock \
	2>/shared/dcpid.log &
attempts=0
until dcpictl --control $control status >/dev/null 2>&1; do
	attempts=$((attempts + 1))
	[ $attempts -lt 300 ] || exit 4
	sleep 0.1
done
shop old old
cellar
dcpictl --control $control epoch
shop old new old new
dcpictl --control $control epoch
cellar
shop new new
dcpictl --control $control epoch
dcpictl --control $control quit
wait
dcpi push --from /shared/db --to "$store" --state /run/dcpi-push
dcpi push --from /shared/db --to "$store" --state /run/dcpi-push
