// The shim's own thread: what must be told again to a segment opened late, HLO files, memory. It alone asks a plugin
// for what may take long, and never holds the GIL.
#pragma once

#include "programs.h"

namespace fleetscope::pjrt {

void start_keeper();  // idempotent; also after a fork
// At exit: waits at most `timeout_ms` until it is out of any plugin, and ends it. True when it has ended.
bool stop_keeper(int timeout_ms);
// A client or a program came while nothing was recorded: it is told when recording goes on in the same segment.
void keeper_owes();
void keep_harvest(Waiting program);
// Nothing of this client is asked any more once this returns (or after a minute inside a plugin that does not return).
void keeper_lets_go(Client* client);
// The same for one program: its description is the loaded executable's in all but name (jaxlib's wrapper holds a bare
// pointer), so it must not be asked after that has gone.
void keeper_lets_go_of_load(uint64_t load);
void keeper_after_fork();

}  // namespace fleetscope::pjrt
