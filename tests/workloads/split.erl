%% Two functions of the same lines, of which one runs three times as long as the other.
-module(split).
-export([main/1]).

heavy(0, Total) -> Total;
heavy(Rounds, Total) ->
    heavy(Rounds - 1, (Total * 3 + Rounds) rem 10007).

light(0, Total) -> Total;
light(Rounds, Total) ->
    light(Rounds - 1, (Total * 3 + Rounds) rem 10007).

%% CPU time of the virtual machine, which has nothing else to do; in steps of 1 ms.
cpu_us() -> element(1, erlang:statistics(runtime)) * 1000.

main([Seconds]) ->
    {Heavy, Light} = repeat(cpu_us() + list_to_integer(Seconds) * 1000000, 0, 0),
    io:format("{\"heavy\": ~b, \"light\": ~b}~n", [Heavy, Light]),
    halt().

repeat(Last, Heavy, Light) ->
    First = cpu_us(),
    _ = heavy(3000000, 1),
    Between = cpu_us(),
    _ = light(1000000, 1),
    Now = cpu_us(),
    case Now < Last of
        true -> repeat(Last, Heavy + Between - First, Light + Now - Between);
        false -> {Heavy, Light}
    end.
