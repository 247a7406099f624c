# Functions that call functions, and no process of its own.
count() {
    local i words=() word
    for ((i = 0; i < $1; i++)); do
        word=${i//[0-5]/x}
        words+=("$word")
    done
    (($1 > 10)) && count $(($1 / 2))
}
while :; do count 200; done
