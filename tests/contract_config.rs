//! What an operator sees of the configuration: the texts and exit codes of `validate`, `init`, `schema` and of the
//! command line itself, from the built binary. Each validation rule has a test that names its message.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own for each test.
fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("config-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the folder for test files can be made");
    folder
}

struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

fn tokentriage(folder: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokentriage"));
    command.args(args).current_dir(folder).env_clear();
    let Output { status, stdout, stderr } = command.output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ended { code: status.code().expect("it ends by itself"), stdout: text(stdout), stderr: text(stderr) }
}

/// Validates a file of this text. The file is called `tt.yaml` in messages.
fn validate(text: &str) -> Ended {
    let folder = folder();
    std::fs::write(folder.join("tt.yaml"), text).expect("the file can be written");
    tokentriage(&folder, &["validate", "-c", "tt.yaml"])
}

const UPSTREAMS: &str =
    "upstreams:\n  - { id: openai, api: openai, base_url: \"https://api.openai.com/v1\", models: [\"gpt-*\"] }\n";

/// A file with one upstream and these limits.
fn limits(limits: &[&str]) -> String {
    let mut text = format!("{UPSTREAMS}governance:\n  limits:\n");
    for limit in limits {
        text.push_str(&format!("    - {{ {limit} }}\n"));
    }
    text
}

const REDIS: &str = "shared_state: { redis: { external: allow, addr: \"10.0.0.10:6379\" } }\n";

/// The file is refused with exactly this error (and no other), shown with its place and a remedy.
#[track_caller]
fn refused(text: &str, error: &str, remedy: &str) {
    let ended = validate(text);
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout, "");
    let told: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(told, [format!("error: {error}")], "{}", ended.stderr);
    assert!(ended.stderr.contains("--> tt.yaml:") || error.contains("there is no upstream"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("= help: {remedy}")), "{}", ended.stderr);
    assert!(ended.stderr.ends_with("tt.yaml: 1 error\n"), "{}", ended.stderr);
}

/// The file is valid, and this warning comes once.
#[track_caller]
fn warned(text: &str, warning: &str) {
    let ended = validate(text);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = ended.stderr.lines().filter(|line| *line == format!("warning: {warning}")).count();
    assert_eq!(told, 1, "{}", ended.stderr);
    assert!(ended.stdout.ends_with("OK: configuration is valid\n"), "{}", ended.stdout);
}

macro_rules! refused {
    ($($name:ident: $text:expr => $error:expr, $remedy:expr;)+) => {
        $(#[test] fn $name() { refused(&$text, $error, $remedy); })+
    };
}

macro_rules! warned {
    ($($name:ident: $text:expr => $warning:expr;)+) => {
        $(#[test] fn $name() { warned(&$text, $warning); })+
    };
}

refused! {
    an_unknown_key_is_refused_with_the_nearest_one:
        format!("{UPSTREAMS}server: {{ lisen: 127.0.0.1:8790 }}\n") =>
        "server.lisen: unknown key `lisen` in `server`", "did you mean `listen`?";
    an_unknown_key_deep_inside_is_refused:
        limits(&["id: a, attach: { nod: \"org:x\" }, type: rpm, amount: 1, period: 1m"]) =>
        "governance.limits[0].attach.nod: unknown key `nod` in `governance.limits[0].attach`", "did you mean `node`?";
    an_unknown_section_is_refused_with_the_ones_there_are:
        format!("{UPSTREAMS}plugins: []\n") =>
        "plugins: unknown key `plugins` at the top of the file", "the keys at the top of the file are server,";
    a_fifth_key_for_redis_is_refused:
        format!("{UPSTREAMS}shared_state: {{ redis: {{ external: allow, addr: \"h:1\", database: 2 }} }}\n") =>
        "shared_state.redis.database: unknown key `database` in `shared_state.redis`",
        "the keys in `shared_state.redis` are external, addr, password_env, tls";
    a_repeated_key_is_refused:
        format!("{UPSTREAMS}server:\n  listen: 127.0.0.1:1\n  listen: 127.0.0.1:2\n") =>
        "server.listen: the key `listen` stands here twice", "keep one of the two";
    a_boolean_is_true_or_false_and_nothing_else:
        format!("{UPSTREAMS}governance: {{ enabled: no }}\n") =>
        "governance.enabled: text does not fit here", "write true or false";
    a_duration_needs_a_unit:
        format!("{UPSTREAMS}server: {{ head_timeout: 10 }}\n") =>
        "server.head_timeout: a number does not fit here", "write a duration such as 500ms, 10s, 1m, 24h or 30d";
    a_size_is_binary:
        format!("{UPSTREAMS}server: {{ max_body_bytes: 32MB }}\n") =>
        "server.max_body_bytes: `32MB` is no size: `MB` is no unit of bytes", "write a size such as 65536, 64KiB, 32MiB";

    an_id_that_is_taken_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 1, period: 1m",
                 "id: a, attach: { level: org }, type: rpm, amount: 1, period: 2m"]) =>
        "governance.limits[1].id: id a is already taken by governance.limits[0]", "give each limit an id of its own";
    an_ill_formed_id_is_refused:
        limits(&["id: Team RPM, attach: { level: org }, type: rpm, amount: 1, period: 1m"]) =>
        "governance.limits[0].id: id \"Team RPM\" is not 1 to 64 of a-z 0-9 _ -", "rename it to something like team_rpm";
    two_limits_of_one_identity_are_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 1, period: 1m",
                 "id: a, attach: { level: org }, type: rpm, amount: 9, period: 60s, algorithm: gcra"]) =>
        "governance.limits[1].id: a is the same limit as governance.limits[0] (same id, type, attach, match, algorithm \
         and period), so both would share one counter", "remove one of the two";
    a_rate_limit_without_a_period_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 1"]) =>
        "governance.limits[0].period: rpm has no period", "add a duration, such as period: 1m";
    a_missing_amount_is_refused:
        limits(&["id: a, attach: { level: org }, type: quota_tokens, period: day"]) =>
        "governance.limits[0].amount: the limit has no amount", "add it, such as amount: ";
    an_amount_of_zero_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 0, period: 1m"]) =>
        "governance.limits[0].amount: amount 0 is zero", "write a whole number of requests above 0";
    a_negative_amount_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: -5, period: 1m"]) =>
        "governance.limits[0].amount: amount -5 is negative", "write a whole number of requests above 0";
    a_fraction_of_a_request_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 1.5, period: 1m"]) =>
        "governance.limits[0].amount: amount 1.5 is not a whole number", "write a whole number of requests above 0";
    an_endless_budget_is_refused:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount_usd: .inf, period: month"]) =>
        "governance.limits[0].amount_usd: amount_usd inf is not a finite number", "write US dollars above 0";
    a_budget_finer_than_a_nanodollar_is_refused:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount_usd: 0.0000000001, period: month"]) =>
        "governance.limits[0].amount_usd: amount_usd 0.0000000001 is finer than a nano-dollar (9 decimal places)",
        "write US dollars above 0";
    dollars_on_a_rate_are_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount_usd: 5, period: 1m"]) =>
        "governance.limits[0].amount_usd: rpm is counted in requests, so amount_usd does not apply", "write amount: 5";
    a_count_on_a_budget_is_refused:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount: 5, period: month"]) =>
        "governance.limits[0].amount: budget_usd is counted in US dollars, so amount does not apply", "write amount_usd: 5";
    a_store_on_a_budget_is_refused:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount_usd: 5, period: month, store: local"]) =>
        "governance.limits[0].store: budget_usd takes no store: it is settled from the ledger, and converges by itself once \
         shared_state.redis is configured", "remove store";
    concurrency_on_redis_is_refused_and_points_to_share:
        limits(&["id: a, attach: { level: org }, type: concurrency, amount: 5, store: redis"]) + REDIS =>
        "governance.limits[0].store: concurrency cannot use store redis: what is in flight is counted in each replica's memory", "use store: share";
    tpm_on_redis_is_refused:
        limits(&["id: a, attach: { level: org }, type: tpm, amount: 20000, period: 1m, store: redis"]) + REDIS =>
        "governance.limits[0].store: tpm cannot use store redis: the script only acquires, so a signed settlement \
         cannot be kept", "use store: local or store: share";
    a_redis_limit_without_a_redis_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 5, period: 1m, store: redis"]) =>
        "governance.limits[0].store: store redis needs shared_state.redis, which is not configured", "add shared_state.redis";
    a_share_of_another_algorithm_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 5, period: 1m, store: share, algorithm: fixed_window"]) + REDIS =>
        "governance.limits[0].store: store share divides a gcra rate, and this limit counts by fixed_window", "use";
    tpm_of_another_algorithm_is_refused:
        limits(&["id: a, attach: { level: org }, type: tpm, amount: 20000, period: 1m, algorithm: token_bucket"]) =>
        "governance.limits[0].algorithm: tpm counts by gcra alone: token_bucket cannot take a reserve back",
        "remove algorithm, or write algorithm: gcra";
    a_tpm_burst_that_no_reserve_fits_is_refused:
        limits(&["id: a, attach: { level: org }, type: tpm, amount: 20000, burst: 16383, period: 1m"]) =>
        "governance.limits[0].burst: tpm burst 16383 is below 16384, the reserve of a call that bounds no output: such a call could \
         never fit", "set burst: 16384 or more; amount can stay as it is";
    a_model_on_a_limit_that_runs_before_the_body_is_refused:
        limits(&["id: a, attach: { level: org }, match: { model: [\"gpt-*\"] }, type: rpm, amount: 5, period: 1m"]) =>
        "governance.limits[0].match.model: rpm is decided before the body is read, when no model is known",
        "remove match.model, or use tpm, budget_usd or a quota";
    an_upstream_on_a_limit_that_runs_before_the_body_is_refused:
        limits(&["id: a, attach: { level: org }, match: { upstream: [openai] }, type: concurrency, amount: 5"]) =>
        "governance.limits[0].match.upstream: concurrency is decided before the body is read, when no upstream is \
         known", "remove match.upstream, or use tpm, budget_usd or a quota";
    an_unknown_level_is_refused:
        limits(&["id: a, attach: { level: division }, type: rpm, amount: 5, period: 1m"]) =>
        "governance.limits[0].attach.level: \"division\" is no level", "use one of org, team, user";
    a_node_that_skips_a_level_is_refused:
        limits(&["id: a, attach: { node: \"org:acme/user:joe\" }, type: rpm, amount: 5, period: 1m"]) =>
        "governance.limits[0].attach.node: node \"org:acme/user:joe\" has \"user:joe\" where team:NAME belongs", "write __global or org:NAME, org:NAME/team:NAME";
    a_glob_that_no_upstream_serves_is_refused:
        limits(&["id: a, attach: { level: org }, match: { model: [\"claude-*\"] }, type: budget_usd, amount_usd: 5, period: day"]) =>
        "governance.limits[0].match.model[0]: no upstream serves a model that fits \"claude-*\"",
        "correct the glob, or serve such a model: upstreams serve gpt-*";
    an_upstream_that_is_not_there_is_refused:
        limits(&["id: a, attach: { level: org }, match: { upstream: [opnai] }, type: budget_usd, amount_usd: 5, period: day"]) =>
        "governance.limits[0].match.upstream[0]: \"opnai\" is no upstream", "did you mean";
    a_calendar_period_on_a_rate_is_refused:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 5, period: month"]) =>
        "governance.limits[0].period: rpm counts over a duration, and month is a calendar period",
        "write a duration, such as 500ms, 1m or 24h";
    a_duration_on_a_quota_is_refused:
        limits(&["id: a, attach: { level: org }, type: quota_tokens, amount: 5, period: 24h"]) =>
        "governance.limits[0].period: quota_tokens counts by the calendar, and 24h is a duration",
        "use one of hour, day, week, month, year";
    a_period_on_concurrency_is_refused:
        limits(&["id: a, attach: { level: org }, type: concurrency, amount: 5, period: 1m"]) =>
        "governance.limits[0].period: concurrency counts what is in flight now, so it has no period", "remove period";
    a_ledger_that_forgets_before_a_period_ends_is_refused:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount_usd: 5, period: month"]) + "ledger: { retain: 7d }\n" =>
        "ledger.retain: ledger.retain is 7d, and limit a counts by the month: after a restart its burn could not be \
         rebuilt", "write retain: 31d or more";

    a_redis_without_consent_is_refused:
        format!("{UPSTREAMS}shared_state: {{ redis: {{ addr: \"10.0.0.10:6379\" }} }}\n") =>
        "shared_state.redis.external: addr points out of this process without the consent `external: allow`",
        "write `external: allow`";
    a_postgres_without_consent_is_refused:
        format!("{UPSTREAMS}shared_state: {{ postgres: {{ dsn_env: TT_PG_DSN }} }}\n") =>
        "shared_state.postgres.external: dsn_env points out of this process without the consent `external: allow`",
        "write `external: allow`";
    consent_in_other_words_is_refused:
        format!("{UPSTREAMS}shared_state: {{ redis: {{ external: true, addr: \"10.0.0.10:6379\" }} }}\n") =>
        "shared_state.redis.external: `true` is no consent; the only one is the literal word allow",
        "write `external: allow`";
    a_redis_address_without_a_port_is_refused:
        format!("{UPSTREAMS}shared_state: {{ redis: {{ external: allow, addr: \"redis://10.0.0.10\" }} }}\n") =>
        "shared_state.redis.addr: `redis://10.0.0.10` is no host with a port", "write host:port without a scheme";
    a_replica_name_that_is_no_dns_label_is_refused:
        format!("{UPSTREAMS}replica: {{ name: Replica_1 }}\n") =>
        "replica.name: `Replica_1` is no DNS label", "use 1 to 63 of a-z, 0-9 and -";
    an_admin_port_off_loopback_without_a_token_is_refused:
        format!("{UPSTREAMS}server: {{ admin_listen: 0.0.0.0:9090 }}\n") =>
        "server.admin_listen: the admin port would listen on 0.0.0.0:9090 without a token",
        "set server.admin_token_env to the environment variable that holds a token, or listen on 127.0.0.1";
    callers_and_admin_on_one_port_are_refused:
        format!("{UPSTREAMS}server: {{ listen: 0.0.0.0:9090 }}\n") =>
        "server.admin_listen: callers and the admin port would both listen on port 9090", "give each its own port";
    no_upstream_at_all_is_refused:
        "server: {}\n" =>
        "upstreams: there is no upstream, so no request could go anywhere", "add one:";
    two_upstreams_of_one_id_are_refused:
        format!("{UPSTREAMS}  - {{ id: openai, api: anthropic, base_url: \"https://a\" }}\n") =>
        "upstreams[1].id: id openai is already taken by upstreams[0]", "give each upstream an id of its own";
    an_upstream_without_an_address_is_refused:
        "upstreams: [{ id: a, api: openai }]\n" =>
        "upstreams[0].base_url: is missing", "write http:// or https://, a host and perhaps a path";
    an_unknown_api_is_refused:
        "upstreams: [{ id: a, api: opneai, base_url: \"https://a\" }]\n" =>
        "upstreams[0].api: `opneai` is not known here", "did you mean `openai`? It is one of openai, anthropic";
    an_address_that_is_no_url_is_refused:
        "upstreams: [{ id: a, api: openai, base_url: \"api.openai.com/v1\" }]\n" =>
        "upstreams[0].base_url: `api.openai.com/v1` is no URL with http:// or https:// in front", "write http:// or https://";
    a_passthrough_that_is_governed_already_is_refused:
        "upstreams: [{ id: a, api: openai, base_url: \"https://a\", passthrough: [\"/v1/chat/completions\"] }]\n" =>
        "upstreams[0].passthrough[0]: `/v1/chat/completions` is served and metered already", "remove the entry";
    a_passthrough_outside_v1_is_refused:
        "upstreams: [{ id: a, api: openai, base_url: \"https://a\", passthrough: [\"/admin\"] }]\n" =>
        "upstreams[0].passthrough[0]: `/admin` is no path that could be passed through", "write an exact path under /v1/";
    a_negative_price_is_refused:
        format!("{UPSTREAMS}pricing: [{{ model: x, input_usd_per_mtok: -1, output_usd_per_mtok: 1 }}]\n") =>
        "pricing[0].input_usd_per_mtok: \"-1\" is not a plain decimal number of at least 0",
        "write USD per million tokens as a plain number";
    a_price_without_input_is_refused:
        format!("{UPSTREAMS}pricing: [{{ model: x, output_usd_per_mtok: 1 }}]\n") =>
        "pricing[0].input_usd_per_mtok: is missing", "write US dollars per million tokens; 0 is a price";
    a_liveness_window_that_one_late_heartbeat_breaks_is_refused:
        format!("{UPSTREAMS}fleet: {{ heartbeat_ms: 2000, liveness_window_ms: 3000 }}\n") =>
        "fleet.liveness_window_ms: 3000 ms is less than two heartbeats of 2000 ms, so one late heartbeat would drop a \
         live replica", "raise liveness_window_ms to at least twice heartbeat_ms";
    an_origin_with_a_path_is_refused:
        format!("{UPSTREAMS}server: {{ cors: {{ allow_origins: [\"https://a/b\"] }} }}\n") =>
        "server.cors.allow_origins[0]: `https://a/b` is no origin", "write a scheme and a host without a path";
    a_certificate_without_its_key_is_refused:
        format!("{UPSTREAMS}server: {{ tls: {{ cert_file: a.pem }} }}\n") =>
        "server.tls.key_file: is missing", "name the PEM file, or remove server.tls";
    an_instance_that_is_no_url_is_refused:
        format!("{UPSTREAMS}experimental: {{ federation: {{ instances: [{{ name: eu, url: eu.example.com }}] }} }}\n") =>
        "experimental.federation.instances[0].url: `eu.example.com` is no URL with http:// or https:// in front",
        "write the URL of an admin port";
    a_secret_in_place_of_its_variable_is_refused:
        "upstreams: [{ id: a, api: openai, base_url: \"https://a\", api_key_env: sk-live-1234 }]\n" =>
        "upstreams[0].api_key_env: what stands here is not the name of an environment variable",
        "write the name of an environment variable in upper case";
}

warned! {
    a_network_redis_is_announced: format!("{UPSTREAMS}{REDIS}") =>
        "shared_state.redis: a network redis at 10.0.0.10:6379 is enabled: the process dials more than its upstreams";
    a_replica_that_nobody_can_ask_is_announced: format!("{UPSTREAMS}{REDIS}") =>
        "fleet: no advertise_url: peers cannot ask this replica for its ledger, so every fleet query lacks it";
    an_advertised_wildcard_is_announced:
        format!("{UPSTREAMS}{REDIS}fleet: {{ advertise_url: \"http://0.0.0.0:9090\" }}\n") =>
        "fleet.advertise_url: 0.0.0.0 is where one listens, not where one is reached: peers that ask it ask themselves";
    an_advertised_port_that_listens_on_loopback_is_announced:
        format!("{UPSTREAMS}{REDIS}fleet: {{ advertise_url: \"http://tt-0.tt.svc:9090\" }}\n") =>
        "fleet.advertise_url: peers are sent to http://tt-0.tt.svc:9090, but the admin port listens on 127.0.0.1:9090, \
         which only this machine reaches";
    a_network_postgres_is_announced:
        format!("{UPSTREAMS}shared_state: {{ postgres: {{ external: allow, dsn_env: TT_PG_DSN }} }}\n") =>
        "shared_state.postgres: a network postgres at the address in TT_PG_DSN is enabled: the process dials more than its \
         upstreams";
    a_share_without_a_redis_is_the_whole:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 5, period: 1m, store: share"]) =>
        "governance.limits[0].store: store share has no membership without shared_state.redis: N stays 1, so each replica \
         enforces the full amount, same as store local";
    a_burst_on_a_budget_is_read_by_nothing:
        limits(&["id: a, attach: { level: org }, type: budget_usd, amount_usd: 5, period: day, burst: 9"]) =>
        "governance.limits[0].burst: burst is read by nothing on budget_usd";
    a_model_without_a_price_is_announced:
        "upstreams: [{ id: a, api: openai, base_url: \"https://a\", models: [\"my-own-*\"] }]\n" =>
        "upstreams[0].models[0]: no model that fits `my-own-*` has a price";
    limits_that_are_not_disclosed_are_announced:
        format!("{UPSTREAMS}governance: {{ keys: {{ disclose_limits: false }} }}\n") =>
        "governance.keys.disclose_limits: answers carry no limit headers, so callers find out about a limit by being \
         refused";
    limits_that_are_all_in_shadow_are_announced:
        limits(&["id: a, attach: { level: org }, type: rpm, amount: 5, period: 1m, posture: { mode: shadow }"]) =>
        "governance.limits: every limit is in shadow, so nothing is refused";
    a_variable_that_nobody_replaces_is_announced:
        "upstreams: [{ id: a, api: openai, base_url: \"https://a\" }]\ndata_dir: ${HOME}/tt\n" =>
        "data_dir: `${…}` is not replaced here";
}

#[test]
fn a_rule_about_a_limit_shows_line_column_caret_and_remedy() {
    let text = format!(
        "{UPSTREAMS}governance:\n  limits:\n    - id: org_tpm\n      attach: {{ node: \"org:acme\" }}\n      \
                        type: tpm\n      amount: 20000\n      period: 1m\n      store: redis\n"
    );
    let ended = validate(&(text + REDIS));
    assert_eq!(ended.code, 1);
    let error = &ended.stderr[ended.stderr.find("error: ").expect("there is an error")..];
    insta::assert_snapshot!(error, @r#"
    error: governance.limits[0].store: tpm cannot use store redis: the script only acquires, so a signed settlement cannot be kept
      --> tt.yaml:10:14
       |
    10 |       store: redis
       |              ^^^^^
       |
       = help: use store: local or store: share

    tt.yaml: 1 error
    "#);
}

#[test]
fn all_errors_are_told_in_one_run_each_once_and_in_the_order_of_the_file() {
    let ended = validate(
        "server:\n  admin_listen: 0.0.0.0:9090\n  cores: 0\n  lsiten: 127.0.0.1:1\n\
         upstreams:\n  - { id: a, api: openai, base_url: \"https://a\" }\n  - { id: a, api: openai, base_url: \"ftp://b\" }\n\
         governance:\n  limits:\n    - { id: x, attach: { level: org }, type: rpm, amount: 5 }\n    \
         - { id: x, attach: { level: org }, type: rpm, amount: five, period: 1m }\n\
         pricing: [{ model: m, input_usd_per_mtok: -1 }]\n",
    );
    assert_eq!(ended.code, 1);
    assert_eq!(ended.stdout, "");
    let told: Vec<&str> = ended.stderr.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    server.admin_listen: the admin port would listen on 0.0.0.0:9090 without a token
    server.cores: `0` is out of range
    server.lsiten: unknown key `lsiten` in `server`
    upstreams[1].id: id a is already taken by upstreams[0]
    upstreams[1].base_url: the scheme `ftp` is neither http nor https
    governance.limits[0].period: rpm has no period
    governance.limits[1].id: id x is already taken by governance.limits[0]
    governance.limits[1].amount: text does not fit here
    pricing[0].input_usd_per_mtok: "-1" is not a plain decimal number of at least 0
    "#);
    assert!(ended.stderr.ends_with("tt.yaml: 9 errors\n"), "{}", ended.stderr);
}

#[test]
fn a_valid_file_is_summed_up_and_ends_with_the_verdict() {
    let ended = validate(
        &(limits(&[
            "id: month, attach: { node: \"org:acme\" }, type: budget_usd, amount_usd: 500, period: month",
            "id: rate, attach: { level: team }, type: rpm, amount: 600, period: 1m, store: redis",
            "id: burst, attach: { level: user }, type: rpm, amount: 60, period: 1m, posture: { mode: shadow }",
            "id: flight, attach: { level: team }, type: concurrency, amount: 8, store: share",
            "id: quota, attach: { level: org }, type: quota_tokens, amount: 1000000, period: day",
            "id: tokens, attach: { level: org }, type: tpm, amount: 100000, period: 1m",
        ]) + REDIS),
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout, @r#"
    configuration: tt.yaml
    upstreams: 1
      openai  openai     https://api.openai.com/v1  gpt-*
    limits: 6, 1 in shadow
      budget_usd, quota_tokens  ledger  2
      rpm                       local   1, 1 in shadow
      rpm                       redis   1
      tpm                       local   1
      concurrency               share   1
    tiers: redis 10.0.0.10:6379
    OK: configuration is valid
    "#);
    let warnings = ended.stderr.lines().filter(|line| line.starts_with("warning: "));
    assert_eq!(warnings.count(), 2, "what else is dialled, and no advertise_url: {}", ended.stderr);
}

/// A file may be checked elsewhere than where it is served, so it is valid; what `run` would say here is said all the same.
#[test]
fn a_variable_that_run_needs_and_that_is_not_set_is_told_in_the_words_of_run() {
    let folder = folder();
    let text = format!(
        "{UPSTREAMS}server: {{ admin_listen: 127.0.0.1:0, listen: 127.0.0.1:0, admin_token_env: TT_ADMIN }}\n\
         shared_state: {{ postgres: {{ external: allow, dsn_env: TT_DSN }} }}\n"
    );
    std::fs::write(folder.join("tt.yaml"), text).expect("the file can be written");
    let validated = tokentriage(&folder, &["validate", "-c", "tt.yaml"]);
    assert_eq!(validated.code, 0, "{}", validated.stderr);
    let end = "environment: `run` would not start here, for want of 2 things named above\nOK: configuration is valid\n";
    assert!(validated.stdout.ends_with(end), "{}", validated.stdout);
    let ran = tokentriage(&folder, &["run", "-c", "tt.yaml"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for variable in [
        "server.admin_token_env: the environment variable TT_ADMIN is not set",
        "shared_state.postgres.dsn_env: the environment variable TT_DSN is not set",
    ] {
        assert!(validated.stderr.contains(&format!("warning: {variable}\n")), "{}", validated.stderr);
        assert!(ran.stderr.contains(&format!("error: {variable}\n")), "{}", ran.stderr);
    }
}

#[test]
fn both_spellings_of_the_file_option_are_taken() {
    let folder = folder();
    std::fs::write(folder.join("tt.yaml"), UPSTREAMS).unwrap();
    for option in ["-c", "--config"] {
        let ended = tokentriage(&folder, &["validate", option, "tt.yaml"]);
        assert_eq!((ended.code, ended.stdout.lines().last()), (0, Some("OK: configuration is valid")));
    }
}

#[test]
fn without_a_file_the_one_in_the_folder_is_taken_and_else_the_built_in_one() {
    let folder = folder();
    let built_in = tokentriage(&folder, &["validate"]);
    assert_eq!(built_in.code, 0, "{}", built_in.stderr);
    assert!(built_in.stdout.starts_with("configuration: built-in default\n"), "{}", built_in.stdout);
    std::fs::write(folder.join("tokentriage.yaml"), UPSTREAMS).unwrap();
    let found = tokentriage(&folder, &["validate"]);
    assert!(found.stdout.starts_with("configuration: tokentriage.yaml\n"), "{}", found.stdout);
    std::fs::write(folder.join("tokentriage.yaml"), "zebra: 1").unwrap();
    assert_eq!(tokentriage(&folder, &["validate"]).code, 1, "a broken file is not passed over");
}

#[test]
fn a_file_that_is_not_there_or_not_text_is_refused_plainly() {
    let folder = folder();
    let missing = tokentriage(&folder, &["validate", "-c", "none.yaml"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.starts_with("error: none.yaml: cannot be read: No such file"), "{}", missing.stderr);
    std::fs::write(folder.join("bytes.yaml"), b"a: 1\nb: \xff\n").unwrap();
    let bytes = tokentriage(&folder, &["validate", "-c", "bytes.yaml"]);
    assert_eq!(bytes.code, 1);
    assert!(bytes.stderr.starts_with("error: bytes.yaml: line 2 is not UTF-8 text\n"), "{}", bytes.stderr);
    let directory = tokentriage(&folder, &["validate", "-c", "."]);
    assert_eq!(directory.code, 1, "{}", directory.stderr);
}

#[test]
fn broken_yaml_is_shown_where_it_breaks() {
    let ended = validate("server:\n  listen: [127.0.0.1\nupstreams: []\n");
    assert_eq!(ended.code, 1);
    insta::assert_snapshot!(ended.stderr, @r#"
    error: illegal placement of ':' indicator
     --> tt.yaml:3:10
      |
    3 | upstreams: []
      |          ^
      |
      = help: correct the YAML; the rest of the file is checked after that

    tt.yaml: 1 error
    "#);
}

/// `run` compiles what `validate` compiles, and does not call a config loaded that it then refuses.
#[test]
fn a_refused_config_is_not_logged_as_loaded() {
    let folder = folder();
    let rate = "id: r, attach: { node: __global }, type: rpm, amount: 1";
    std::fs::write(folder.join("tt.yaml"), limits(&[rate])).expect("the file can be written");
    let ended = tokentriage(&folder, &["--log-format", "json", "run", "-c", "tt.yaml"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("replica identity resolved") && ended.stderr.contains("governance.limits[0]"));
    assert!(!ended.stderr.contains("config loaded"), "{}", ended.stderr);
}

#[test]
fn secrets_in_the_file_are_not_repeated() {
    let ended = validate(
        "upstreams: [{ id: a, api: openai, base_url: \"https://u:hunter2@a\", api_key_env: hunter2-x, api_key: hunter2 }]\n",
    );
    assert_eq!(ended.code, 1);
    assert!(!(ended.stderr + &ended.stdout).contains("hunter2"));
}

#[test]
fn init_writes_a_file_that_is_valid_and_overwrites_nothing_unasked() {
    let folder = folder();
    let first = tokentriage(&folder, &["init"]);
    assert_eq!((first.code, first.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(first.stdout, @r#"
    wrote tokentriage.yaml

    next:
      tokentriage validate -c tokentriage.yaml
      tokentriage run -c tokentriage.yaml
    "#);
    let valid = tokentriage(&folder, &["validate"]);
    assert_eq!((valid.code, valid.stderr.as_str()), (0, ""), "the starter gives no reason to warn");

    std::fs::write(folder.join("tokentriage.yaml"), "mine\n").unwrap();
    let second = tokentriage(&folder, &["init"]);
    assert_eq!(second.code, 1);
    assert_eq!(
        second.stderr,
        "error: tokentriage.yaml is there already; name another file, or use --force to overwrite it\n"
    );
    assert_eq!(std::fs::read_to_string(folder.join("tokentriage.yaml")).unwrap(), "mine\n");
    assert_eq!(tokentriage(&folder, &["init", "--force"]).code, 0);
    assert_eq!(tokentriage(&folder, &["init", "other.yaml"]).code, 0);
    let same = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(same("tokentriage.yaml"), same("other.yaml"));
}

#[test]
fn the_schema_is_json_and_closed_to_unknown_keys() {
    let ended = tokentriage(&folder(), &["schema"]);
    assert_eq!(ended.code, 0);
    let schema: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    for section in schema["$defs"].as_object().unwrap().values() {
        assert_eq!(section["additionalProperties"], false, "{section}");
    }
    assert_eq!(schema["$defs"]["Limit"]["properties"]["type"]["enum"][0], "budget_usd");
}

#[test]
fn a_command_line_that_is_not_understood_ends_with_1_and_help_with_0() {
    let folder = folder();
    for args in
        [&["nonsense"][..], &["validate", "--nonsense"], &["keys", "mint"], &[], &["--log-format", "xml", "schema"]]
    {
        let ended = tokentriage(&folder, args);
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{args:?}: {}", ended.stderr);
    }
    for args in [&["--help"][..], &["validate", "--help"], &["--version"], &["keys", "mint", "--help"]] {
        let ended = tokentriage(&folder, args);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{args:?}");
    }
    for args in ["version", "--version", "-V"] {
        let ended = tokentriage(&folder, &[args]);
        let said = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(said, (0, concat!("tokentriage ", env!("CARGO_PKG_VERSION"), "\n"), ""), "{args}");
    }
    let ended = tokentriage(&folder, &["--log-level", "info=[", "schema"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.starts_with("error: --log-level: `info=[` is no log filter"), "{}", ended.stderr);
}

#[test]
fn a_port_that_is_taken_is_named_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let taken = taken.local_addr().map(|addr| (taken, addr)).expect("a listener has an address");
    for (key, other) in [("listen", "admin_listen"), ("admin_listen", "listen")] {
        let folder = folder();
        let text = format!("{UPSTREAMS}server: {{ {key}: \"{}\", {other}: \"127.0.0.1:0\" }}\n", taken.1);
        std::fs::write(folder.join("tt.yaml"), text).expect("the file can be written");
        let ended = tokentriage(&folder, &["run", "-c", "tt.yaml"]);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        let said = format!("server.{key} {}: Address already in use (os error 98); something listens there", taken.1);
        assert!(ended.stderr.contains(&said) && ended.stderr.contains("name another port"), "{}", ended.stderr);
    }
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let folder = folder();
    for shell in ["bash", "zsh", "fish"] {
        let ended = tokentriage(&folder, &["completions", shell]);
        assert!(ended.code == 0 && ended.stdout.contains("validate"), "{shell}");
    }
    assert!(tokentriage(&folder, &["man"]).stdout.contains("tokentriage"));
    assert_eq!(tokentriage(&folder, &["man", "--dir", "pages"]).code, 0);
    for page in ["tokentriage.1", "tokentriage-validate.1", "tokentriage-keys-mint.1"] {
        assert!(folder.join("pages").join(page).is_file(), "{page}");
    }
}
