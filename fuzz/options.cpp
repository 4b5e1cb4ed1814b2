// What most of a run would go into otherwise: readers throw on nearly every input, and each throw sweeps the stacks
// kept for the use of locals after return, which the C++ tests under the sanitizers look for too. Short stacks of
// allocations suffice to find an input; to explain it, run it alone with ASAN_OPTIONS=malloc_context_size=30.
extern "C" const char* __asan_default_options() {
  return "detect_stack_use_after_return=0:malloc_context_size=2:quarantine_size_mb=4";
}
