// Calls of JavaScript that a profiler must find, in V8's interpreter and in code of its compilers:
// recursion, a method, a closure, calls from built-in code back into a function, and an outer
// function that is run too seldom to be compiled. The argument is the time to run in seconds.
// Prints the CPU time of each kind of call.
'use strict';

// Too large to be inlined, so that each kind of call has a frame of its own.
function leaf(n) {
    let total = 0;
    for (let i = 0; i < n; i++) {
        total = (total * 31 + i) % 1000003;
        if (total === n) total += String(total).length;
        switch (total & 7) {
            case 0: total += 11; break;
            case 1: total += 13; break;
            case 2: total += 17; break;
            case 3: total += 19; break;
            case 4: total ^= 5; break;
            case 5: total ^= 3; break;
            case 6: total += total >> 3; break;
            default: total += total >> 5; break;
        }
    }
    return total;
}

function recursion(depth) {
    if (depth === 0) return leaf(60000);
    return recursion(depth - 1) + 1;
}

class Sorter {
    key(left, right) {
        leaf(2500);
        return left - right;
    }

    sort() {
        return [5, 3, 1, 4, 2, 6, 8, 7].sort((left, right) => this.key(left, right));
    }
}

function maker(n) {
    return function made() {
        return leaf(n) + leaf(n);
    };
}

// Three times as long as `once`.
function thrice() {
    return leaf(20000) + leaf(20000) + leaf(20000);
}

function once() {
    return leaf(20000);
}

function main(seconds) {
    const end = Date.now() + seconds * 1000;
    const sorter = new Sorter();
    const made = maker(15000);
    const works = {
        recursion: () => recursion(3), sort: () => sorter.sort(), made: () => made(),
        thrice: () => thrice(), once: () => once(),
    };
    const times = {};
    for (const name of Object.keys(works)) times[name] = 0;
    while (Date.now() < end) {
        for (const [name, work] of Object.entries(works)) {
            const begin = process.cpuUsage();
            work();
            const { user, system } = process.cpuUsage(begin);
            times[name] += (user + system) / 1e6;
        }
    }
    console.log(JSON.stringify(times));
}

main(Number(process.argv[2]));
