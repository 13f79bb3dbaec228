/* A library that captures and fetches trace events as libnrt does, for tests.
 *
 * A test adds what the device did with `device_*`; everything else is the runtime's interface.
 * Compile with -DTOO_OLD for a runtime without the functions, -DSTATUS=n for one whose start fails,
 * -DUNKNOWN_JSON for one whose events have other fields. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef STATUS
#define STATUS 0
#endif
#define N_TYPES 4
#define N_CORES 32

static const char *TYPES[N_TYPES] = {"nc_exec_running", "cc_exec_barrier", "cc_running", "nrt_execute"};

typedef struct { uint64_t max_events; bool enabled[N_TYPES]; } config_t;
typedef struct { int type; bool is_stop; unsigned core; uint64_t id, at_ns; int model; } event_t;

static config_t active;
static bool is_running;
static event_t *ring[N_CORES];
static uint64_t n_in_ring[N_CORES], next_id = 1;

static void add(int type, bool is_stop, unsigned core, uint64_t id, uint64_t at_ns, int model) {
    if (!is_running || !active.enabled[type] || core >= N_CORES) return;
    if (n_in_ring[core] == active.max_events) {
        memmove(ring[core], ring[core] + 1, (n_in_ring[core] - 1) * sizeof(event_t));
        n_in_ring[core]--;
    }
    ring[core][n_in_ring[core]++] = (event_t){type, is_stop, core, id, at_ns, model};
}

/* What the device did, on its own clock. */
void device_event(int type, unsigned core, uint64_t start_ns, uint64_t stop_ns, int model) {
    uint64_t id = next_id++;
    add(type, false, core, id, start_ns, model);
    add(type, true, core, id, stop_ns, model);
}

#ifndef TOO_OLD
int nrt_sys_trace_config_allocate(config_t **config) {
    *config = calloc(1, sizeof(config_t));
    return *config ? 0 : 1;
}
void nrt_sys_trace_config_set_defaults(config_t *config) {
    config->max_events = 1000000;
    for (int i = 0; i < N_TYPES; i++) config->enabled[i] = true;
}
void nrt_sys_trace_config_set_max_events_per_nc(config_t *config, uint64_t most) { config->max_events = most; }
int nrt_sys_trace_config_set_capture_enabled_for_event_type(config_t *config, const char *type, bool enabled) {
    for (int i = 0; i < N_TYPES; i++)
        if (!strcmp(TYPES[i], type)) { config->enabled[i] = enabled; return 0; }
    return 2;
}
void nrt_sys_trace_config_free(config_t *config) { free(config); }
int nrt_sys_trace_get_event_types(const char ***types, size_t *count) {
    *types = malloc(sizeof(TYPES));
    memcpy(*types, TYPES, sizeof(TYPES));
    *count = N_TYPES;
    return 0;
}
void nrt_sys_trace_free_event_types(const char **types, size_t count) { (void)count; free(types); }
int nrt_sys_trace_start(config_t *config) {
    if (STATUS) return STATUS;
    active = *config;
    for (int core = 0; core < N_CORES; core++) {
        ring[core] = realloc(ring[core], active.max_events * sizeof(event_t));
        n_in_ring[core] = 0;
    }
    is_running = true;
    return 0;
}
int nrt_sys_trace_stop(void) {
    is_running = false;
    return 0;
}
int nrt_sys_trace_fetch_events(char **buffer, size_t *written, const void *options) {
    (void)options;
    if (*buffer || !is_running) return 1;
    uint64_t n = 0;
    for (int core = 0; core < N_CORES; core++) n += n_in_ring[core];
    size_t size = 64 + 400 * n, at = 0;
    char *text = *buffer = malloc(size);
    at += snprintf(text + at, size - at, "{\"events\":[");
    for (int core = 0; core < N_CORES; core++) {
        for (uint64_t i = 0; i < n_in_ring[core]; i++) {
            event_t *e = &ring[core][i];
#ifdef UNKNOWN_JSON
            at += snprintf(text + at, size - at, "%s{\"what\":%d}", at > 11 ? "," : "", e->type);
#else
            at += snprintf(text + at, size - at,
                "%s{\"event_type\":\"%s\",\"phase\":\"%s\",\"id\":%llu,\"nc_idx\":%u,\"nc_local_id\":0,"
                "\"tracking_id\":%llu,\"thread_id\":1,\"worker_gid\":%u,\"data\":{\"nc_timestamp_ns\":%llu,"
                "\"model_id\":%d},"
                "\"timestamp_ns\":%llu}",
                at > 11 ? "," : "", TYPES[e->type], e->is_stop ? "stop" : "start",
                (unsigned long long)e->id, e->core, (unsigned long long)e->id, e->core,
                (unsigned long long)e->at_ns, e->model, (unsigned long long)e->at_ns);
#endif
        }
        n_in_ring[core] = 0;
    }
    at += snprintf(text + at, size - at, "],\"data_version\":2}");
    *written = at;
    return 0;
}
void nrt_sys_trace_buffer_free(char *buffer) { free(buffer); }
#endif
