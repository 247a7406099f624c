%% Functions of Erlang whose share of the time is known: each kind of call runs `leaf`, or functions
%% in C, and the program prints how many microseconds each took in all, as JSON. Argument: seconds.
-module(functions).
-export([main/1, thrice/1]).

leaf(0, Sum) -> Sum;
leaf(Count, Sum) -> leaf(Count - 1, (Sum * 31 + Count) rem 1000003).

recursion(0, Count) -> leaf(Count, 1) + 1;
recursion(Depth, Count) -> recursion(Depth - 1, Count) + 1.

mapped(Count) ->
    length(lists:map(fun(Number) -> leaf(Count, Number) + 1 end, [1, 2])).

sorted(Count) ->
    length(lists:sort(fun(One, Other) -> leaf(Count, One) > 0 andalso One < Other end, [2, 1])).

caught(Count) ->
    try leaf(Count, 2) of
        Sum -> Sum + length(integer_to_list(Sum))
    catch
        throw:_ -> 0
    end.

%% A process of its own: its first function is the closure.
spawned(Count) ->
    Self = self(),
    spawn(fun() -> Sum = leaf(Count, 3) + 1, Self ! {sum, Sum} end),
    receive {sum, Sum} -> Sum end.

%% Functions in C, garbage collection, and large numbers.
in_c(Count) ->
    List = lists:seq(1, Count div 4),
    Binary = term_to_binary(lists:reverse(List)),
    Sum = erlang:crc32(Binary) + erlang:phash2(List),
    size(Binary) + Sum + length(binary_to_term(Binary)).

thrice(Count) -> leaf(3 * Count, 4) + 1.

applied(Count) -> apply(?MODULE, list_to_existing_atom("thrice"), [Count]) + 1.

once(Count) -> leaf(Count, 5) + 1.

%% CPU time of the virtual machine, which has nothing else to do; in steps of 1 ms.
cpu_us() -> element(1, erlang:statistics(runtime)) * 1000.

kinds() ->
    [
        {recursion, fun(Count) -> recursion(3, Count) end},
        {mapped, fun(Count) -> mapped(Count) end},
        {sorted, fun(Count) -> sorted(Count) end},
        {caught, fun(Count) -> caught(Count) end},
        {spawned, fun(Count) -> spawned(Count) end},
        {in_c, fun(Count) -> in_c(Count) end},
        {applied, fun(Count) -> applied(Count) end},
        {once, fun(Count) -> once(Count) end}
    ].

measured({Name, Function}, Times) ->
    Begin = cpu_us(),
    _ = Function(20000),
    maps:update_with(Name, fun(Time) -> Time + cpu_us() - Begin end, 0, Times).

repeat(Last, Times) ->
    case cpu_us() < Last of
        true -> repeat(Last, lists:foldl(fun measured/2, Times, kinds()));
        false -> Times
    end.

main([Seconds]) ->
    Times = repeat(cpu_us() + list_to_integer(Seconds) * 1000000, #{}),
    Texts = [io_lib:format("\"~s\": ~b", [Name, Time]) || {Name, Time} <- maps:to_list(Times)],
    io:format("{~s}~n", [lists:join(", ", Texts)]),
    halt().
