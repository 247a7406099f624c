// Two functions of the same lines, of which one runs three times as long as the other.

function heavy(rounds) {
    let total = 0;
    for (let number = 0; number < rounds; number++) {
        total += number * 3 & 7;
    }
    return total;
}

function light(rounds) {
    let total = 0;
    for (let number = 0; number < rounds; number++) {
        total += number * 3 & 7;
    }
    return total;
}

function main(seconds) {
    const end = Date.now() + seconds * 1000;
    const times = { heavy: 0, light: 0 };
    while (Date.now() < end) {
        const begin = performance.now();
        heavy(300000);
        const between = performance.now();
        light(100000);
        times.heavy += between - begin;
        times.light += performance.now() - between;
    }
    console.log(JSON.stringify(times));
}

main(Number(process.argv[2]));
