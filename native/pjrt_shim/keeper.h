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
// Nothing of this client is asked any more once this returns (or after 2 s inside a plugin that does not return).
void keeper_lets_go(Client* client);
void keeper_after_fork();

}  // namespace fleetscope::pjrt
