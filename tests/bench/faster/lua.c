/* An interpreter of Lua: `lua SCRIPT SEED SIZE`. */
#include <stdio.h>
#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"

int main(int argc, char **argv)
{
    lua_State *lua = luaL_newstate();
    if (argc != 4 || !lua)
        return 2;
    luaL_openlibs(lua);
    for (int number = 2; number < 4; number++) {
        lua_pushstring(lua, argv[number]);
        lua_setglobal(lua, number == 2 ? "SEED" : "SIZE");
    }
    int failed = luaL_dofile(lua, argv[1]);
    if (failed)
        fprintf(stderr, "%s\n", lua_tostring(lua, -1));
    lua_close(lua);
    return failed;
}
