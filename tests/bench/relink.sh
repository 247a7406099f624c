# Links a program's objects in an order that a number chooses: relink.sh FOLDER NUMBER PROGRAM.
# `dcpi time --relink` has the number in $DCPI_LAYOUT.
set -e
order=$(printf '%s\n' "$1"/*.o |
    awk -v seed="$2" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -n | cut -f 2)
# Programs that run keep the old file.
gcc -o "$3.new" $order -lm
mv "$3.new" "$3"
