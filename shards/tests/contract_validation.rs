//! What `validate` says about limits: every rule once, with the exact text an operator reads.
//!
//! The texts are a contract: people search for them, and scripts read them.

use shards::limit::{AttachDecl, LimitDecl, MatchDecl};
use shards::plan::{CompileInput, Problem, compile};

const DAY_MS: u64 = 86_400_000;

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn list(words: &[&str]) -> Option<Vec<String>> {
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

fn at_node(node: &str) -> Option<AttachDecl> {
    Some(AttachDecl { node: some(node), level: None })
}

fn at_level(level: &str) -> Option<AttachDecl> {
    Some(AttachDecl { node: None, level: some(level) })
}

/// A valid limit of each type, for the test to spoil.
fn valid(kind: &str) -> LimitDecl {
    let mut decl = LimitDecl {
        id: some(&format!("the_{kind}")),
        kind: some(kind),
        attach: at_node("__global"),
        ..Default::default()
    };
    match kind {
        "budget_usd" => (decl.amount_usd, decl.period) = (some("500"), some("month")),
        "quota_tokens" | "quota_requests" => (decl.amount, decl.period) = (some("1000"), some("day")),
        "rpm" => (decl.amount, decl.period) = (some("600"), some("1m")),
        "tpm" => (decl.amount, decl.period) = (some("20000"), some("1m")),
        _ => decl.amount = some("4"),
    }
    decl
}

struct Said {
    problems: Vec<String>,
    warnings: Vec<String>,
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

fn validate(decls: &[LimitDecl], redis: bool, retain_ms: u64) -> Said {
    let decls: Vec<LimitDecl> = decls
        .iter()
        .enumerate()
        .map(|(at, decl)| LimitDecl { path: format!("governance.limits[{at}]"), ..decl.clone() })
        .collect();
    let upstream_ids = ["openai".to_owned(), "claude".to_owned()];
    let globs = [("gpt-*", 0), ("o*", 0), ("claude-*", 1)];
    let globs = globs.map(|(glob, upstream)| (format!("upstreams[{upstream}].models"), glob.to_owned()));
    let compiled = compile(CompileInput {
        limits: &decls,
        redis,
        upstream_ids: &upstream_ids,
        upstream_model_globs: &globs,
        retain_ms,
        ..CompileInput::default()
    });
    let problems = compiled.limits.err().unwrap_or_default();
    Said { problems: lines(&problems), warnings: lines(&compiled.warnings) }
}

/// The one problem of one limit in a file without Redis.
#[track_caller]
fn refused(decl: LimitDecl, want: &str) {
    let said = validate(&[decl], false, 400 * DAY_MS);
    assert_eq!(said.problems, [format!("governance.limits[0].{want}")]);
}

/// The one warning of one limit that compiles.
#[track_caller]
fn warned(decl: LimitDecl, want: &str) {
    let said = validate(&[decl], false, 400 * DAY_MS);
    assert_eq!((said.problems, said.warnings), (vec![], vec![format!("governance.limits[0].{want}")]));
}

#[test]
fn a_plain_limit_of_every_type_is_accepted_in_silence() {
    for kind in ["budget_usd", "quota_tokens", "quota_requests", "rpm", "tpm", "concurrency"] {
        let said = validate(&[valid(kind)], true, 400 * DAY_MS);
        assert_eq!((said.problems, said.warnings), (vec![], vec![]), "{kind}");
    }
}

#[test]
fn an_id_is_there_well_formed_and_unique() {
    refused(
        LimitDecl { id: None, ..valid("rpm") },
        "id: the limit has no id; add an id such as team_rpm: 1 to 64 of a-z 0-9 _ -",
    );
    refused(
        LimitDecl { id: some("Team RPM"), ..valid("rpm") },
        "id: id \"Team RPM\" is not 1 to 64 of a-z 0-9 _ -; rename it to something like team_rpm",
    );
    refused(
        LimitDecl { id: some(""), ..valid("rpm") },
        "id: id \"\" is not 1 to 64 of a-z 0-9 _ -; rename it to something like team_rpm",
    );
    assert_eq!(validate(&[LimitDecl { id: some(&"x".repeat(64)), ..valid("rpm") }], false, 0).problems.len(), 0);
    assert_eq!(validate(&[LimitDecl { id: some(&"x".repeat(65)), ..valid("rpm") }], false, 0).problems.len(), 1);
    let twice = [valid("rpm"), LimitDecl { id: some("the_rpm"), ..valid("concurrency") }];
    assert_eq!(
        validate(&twice, false, 0).problems,
        [
            "governance.limits[1].id: id the_rpm is already taken by governance.limits[0]; give each limit an id of its own"
        ]
    );
}

#[test]
fn two_limits_with_the_same_identity_are_told_so_once() {
    let spelled_out = LimitDecl { algorithm: some("gcra"), amount: some("9"), period: some("60s"), ..valid("rpm") };
    assert_eq!(
        validate(&[valid("rpm"), spelled_out], false, 0).problems,
        ["governance.limits[1].id: the_rpm is the same limit as governance.limits[0] (same id, type, attach, match, \
          algorithm and period), so both would share one counter; remove one of the two"]
    );
}

#[test]
fn a_type_is_one_of_six() {
    const TYPES: &str = "budget_usd, quota_tokens, quota_requests, rpm, tpm, concurrency";
    refused(
        LimitDecl { kind: None, ..valid("rpm") },
        &format!("type: the limit has no type; add type: one of {TYPES}"),
    );
    refused(
        LimitDecl { kind: some("rmp"), ..valid("rpm") },
        &format!("type: \"rmp\" is no type; did you mean rpm? use one of {TYPES}"),
    );
    refused(
        LimitDecl { kind: some("spend"), ..valid("rpm") },
        &format!("type: \"spend\" is no type; use one of {TYPES}"),
    );
}

#[test]
fn a_limit_hangs_on_a_node_or_on_a_level() {
    const NODES: &str = "write __global or org:NAME, org:NAME/team:NAME, org:NAME/team:NAME/user:NAME";
    let nothing = "attach: the limit is attached to nothing; \
                   add attach: { node: __global }, { node: \"org:acme\" } or { level: team }";
    refused(LimitDecl { attach: None, ..valid("rpm") }, nothing);
    refused(LimitDecl { attach: Some(AttachDecl::default()), ..valid("rpm") }, nothing);
    refused(
        LimitDecl { attach: Some(AttachDecl { node: some("__global"), level: some("team") }), ..valid("rpm") },
        "attach: attach names a node and a level, and a limit hangs on one of them; remove node or level",
    );
    refused(
        LimitDecl { attach: at_node("org:acme/user:dev1"), ..valid("rpm") },
        &format!("attach.node: node \"org:acme/user:dev1\" has \"user:dev1\" where team:NAME belongs; {NODES}"),
    );
    refused(
        LimitDecl { attach: at_node("org:a b"), ..valid("rpm") },
        &format!("attach.node: node \"org:a b\" has the name \"a b\": a name is 1 to 64 of A-Z a-z 0-9 . _ -; {NODES}"),
    );
    refused(
        LimitDecl { attach: at_level("teams"), ..valid("rpm") },
        "attach.level: \"teams\" is no level; did you mean team? use one of org, team, user",
    );
    refused(
        LimitDecl { attach: at_level("global"), ..valid("rpm") },
        "attach.level: level global has one node only; write attach: { node: __global }",
    );
}

#[test]
fn a_match_names_what_exists() {
    let matching = |match_: MatchDecl| LimitDecl { match_: Some(match_), ..valid("tpm") };
    refused(
        matching(MatchDecl { model: list(&["gpt-*", "gtp-*"]), ..Default::default() }),
        "match.model[1]: no upstream serves a model that fits \"gtp-*\"; \
         correct the glob, or serve such a model: upstreams serve gpt-*, o*, claude-*",
    );
    refused(
        matching(MatchDecl { upstream: list(&["opnai"]), ..Default::default() }),
        "match.upstream[0]: \"opnai\" is no upstream; did you mean openai? use one of openai, claude",
    );
    refused(
        matching(MatchDecl { endpoint: list(&["chat"]), ..Default::default() }),
        "match.endpoint[0]: \"chat\" is no endpoint; use one of chat.completions, completions, embeddings, responses, \
         messages, messages.count_tokens, passthrough",
    );
    refused(
        matching(MatchDecl { model: list(&[]), ..Default::default() }),
        "match.model: match.model is empty; list what to select, or remove match.model to select all",
    );
    let fine = MatchDecl { model: list(&["*-mini", "*"]), upstream: list(&["claude"]), endpoint: list(&["messages"]) };
    assert_eq!(validate(&[matching(fine)], false, 0).problems, [""; 0]);
}

#[test]
fn a_limit_that_is_asked_before_the_body_is_read_cannot_match_what_the_body_says() {
    let both = MatchDecl { model: list(&["gpt-*"]), upstream: list(&["openai"]), ..Default::default() };
    for kind in ["rpm", "concurrency"] {
        let said = validate(&[LimitDecl { match_: Some(both.clone()), ..valid(kind) }], false, 0);
        assert_eq!(
            said.problems,
            [
                format!(
                    "governance.limits[0].match.model: {kind} is decided before the body is read, when no model is known; \
                     remove match.model, or use tpm, budget_usd or a quota, which know the model"
                ),
                format!(
                    "governance.limits[0].match.upstream: {kind} is decided before the body is read, when no upstream is \
                     known; remove match.upstream, or use tpm, budget_usd or a quota, which know the upstream"
                ),
            ]
        );
        let endpoint = MatchDecl { endpoint: list(&["messages"]), ..Default::default() };
        assert_eq!(validate(&[LimitDecl { match_: Some(endpoint), ..valid(kind) }], false, 0).problems, [""; 0]);
    }
}

#[test]
fn money_is_in_dollars_and_everything_else_is_a_count() {
    refused(
        LimitDecl { amount_usd: None, amount: some("500"), ..valid("budget_usd") },
        "amount: budget_usd is counted in US dollars, so amount does not apply; write amount_usd: 500",
    );
    refused(
        LimitDecl { amount: some("500"), ..valid("budget_usd") },
        "amount: budget_usd is counted in US dollars, so amount does not apply; remove amount",
    );
    refused(
        LimitDecl { amount: None, amount_usd: some("600"), ..valid("rpm") },
        "amount_usd: rpm is counted in requests, so amount_usd does not apply; write amount: 600",
    );
    refused(
        LimitDecl { amount_usd: some("5"), ..valid("concurrency") },
        "amount_usd: concurrency is counted in concurrent-requests, so amount_usd does not apply; remove amount_usd",
    );
    refused(
        LimitDecl { amount_usd: None, ..valid("budget_usd") },
        "amount_usd: the limit has no amount_usd; add it, such as amount_usd: 500",
    );
    refused(
        LimitDecl { amount: None, ..valid("quota_tokens") },
        "amount: the limit has no amount; add it, such as amount: 10000000",
    );
}

#[test]
fn an_amount_is_a_number_that_can_be_counted() {
    let requests = |amount: &str, fault: &str| {
        let want = format!("amount: amount {fault}; write a whole number of requests above 0, such as 600");
        refused(LimitDecl { amount: some(amount), ..valid("rpm") }, &want);
    };
    requests("0", "0 is zero");
    requests("-5", "-5 is negative");
    requests("1.5", "1.5 is not a whole number");
    requests(".inf", ".inf is not a finite number");
    requests("lots", "\"lots\" is not a number");
    requests("1e30", "1e30 is more than 18446744073709551615");
    let dollars = |amount: &str, fault: &str| {
        let want = format!("amount_usd: amount_usd {fault}; write US dollars above 0, such as 500 or 0.25");
        refused(LimitDecl { amount_usd: some(amount), ..valid("budget_usd") }, &want);
    };
    dollars("0.0", "0.0 is zero");
    dollars("-0.01", "-0.01 is negative");
    dollars(".nan", ".nan is not a finite number");
    dollars("0.0000000001", "0.0000000001 is finer than a nano-dollar (9 decimal places)");
    dollars("20000000000", "20000000000 is more than 18446744073 US dollars");
    refused(
        LimitDecl { amount: some("4294967296"), ..valid("concurrency") },
        "amount: amount 4294967296 is more than 4294967295, which is all a gauge can count; \
         write a whole number of concurrent-requests above 0, such as 20",
    );
    refused(
        LimitDecl { burst: some("0"), ..valid("rpm") },
        "burst: burst 0 is zero; write a whole number of requests above 0, such as 600",
    );
}

#[test]
fn dollars_are_kept_to_the_nano() {
    for (text, nano) in [("500", 500_000_000_000), ("0.000001", 1_000), ("1e-6", 1_000), ("0.1", 100_000_000)] {
        let decl = LimitDecl { path: "x".into(), amount_usd: some(text), ..valid("budget_usd") };
        let input = CompileInput { limits: &[decl], retain_ms: u64::MAX, ..CompileInput::default() };
        assert_eq!(compile(input).limits.expect("valid").limits[0].amount, nano, "{text}");
    }
}

#[test]
fn a_period_is_of_the_kind_the_type_counts_by() {
    refused(
        LimitDecl { period: None, ..valid("rpm") },
        "period: rpm has no period; add a duration, such as period: 1m",
    );
    refused(
        LimitDecl { period: None, ..valid("tpm") },
        "period: tpm has no period; add a duration, such as period: 1m",
    );
    refused(
        LimitDecl { period: None, ..valid("budget_usd") },
        "period: budget_usd has no period; add period: one of hour, day, week, month, year",
    );
    refused(
        LimitDecl { period: some("month"), ..valid("rpm") },
        "period: rpm counts over a duration, and month is a calendar period; write a duration, such as 500ms, 1m or 24h",
    );
    refused(
        LimitDecl { period: some("60"), ..valid("rpm") },
        "period: period \"60\" is not a duration; write a duration, such as 500ms, 1m or 24h",
    );
    refused(
        LimitDecl { period: some("0s"), ..valid("rpm") },
        "period: period 0s is zero; write a duration, such as period: 1m",
    );
    refused(
        LimitDecl { period: some("24h"), ..valid("quota_requests") },
        "period: quota_requests counts by the calendar, and 24h is a duration; use one of hour, day, week, month, year",
    );
    refused(
        LimitDecl { period: some("monthly"), ..valid("budget_usd") },
        "period: \"monthly\" is no period; use one of hour, day, week, month, year",
    );
    refused(
        LimitDecl { period: some("mnoth"), ..valid("budget_usd") },
        "period: \"mnoth\" is no period; did you mean month? use one of hour, day, week, month, year",
    );
    refused(
        LimitDecl { period: some("1m"), ..valid("concurrency") },
        "period: concurrency counts what is in flight now, so it has no period; remove period",
    );
}

#[test]
fn only_rpm_chooses_its_algorithm() {
    for algorithm in ["gcra", "token_bucket", "fixed_window", "sliding_window"] {
        let said = validate(&[LimitDecl { algorithm: some(algorithm), ..valid("rpm") }], false, 0);
        assert_eq!(said.problems, [""; 0], "{algorithm}");
    }
    assert_eq!(validate(&[LimitDecl { algorithm: some("gcra"), ..valid("tpm") }], false, 0).problems, [""; 0]);
    refused(
        LimitDecl { algorithm: some("slidingwindow"), ..valid("rpm") },
        "algorithm: \"slidingwindow\" is no algorithm; did you mean sliding_window? \
         use one of gcra, token_bucket, fixed_window, sliding_window",
    );
    refused(
        LimitDecl { algorithm: some("fixed_window"), ..valid("tpm") },
        "algorithm: tpm counts by gcra alone: fixed_window cannot take a reserve back; \
         remove algorithm, or write algorithm: gcra",
    );
    refused(
        LimitDecl { algorithm: some("gcra"), ..valid("budget_usd") },
        "algorithm: budget_usd has no rate algorithm; remove algorithm",
    );
}

#[test]
fn a_rate_fits_its_cell() {
    refused(
        LimitDecl { algorithm: some("sliding_window"), amount: some("1048576"), ..valid("rpm") },
        "amount: amount 1048576 does not fit sliding_window; the maximum is 1048575; \
         lower amount to 1048575 or less, or use algorithm: gcra",
    );
}

#[test]
fn a_tpm_burst_holds_an_ordinary_reserve() {
    refused(
        LimitDecl { burst: some("500"), ..valid("tpm") },
        "burst: tpm burst 500 is below 16384, the reserve of a call that bounds no output: such a call could never fit; \
         set burst: 16384 or more; amount can stay as it is",
    );
    refused(
        LimitDecl { amount: some("500"), ..valid("tpm") },
        "amount: tpm burst 500 (burst defaults to amount) is below 16384, the reserve of a call that bounds no output: \
         such a call could never fit; set burst: 16384 or more; amount can stay as it is",
    );
    let fits = LimitDecl { amount: some("500"), burst: some("16384"), ..valid("tpm") };
    assert_eq!(validate(&[fits], false, 0).problems, [""; 0]);
}

#[test]
fn a_store_is_one_the_type_can_keep_its_promise_in() {
    refused(
        LimitDecl { store: some("local"), ..valid("budget_usd") },
        "store: budget_usd takes no store: it is settled from the ledger, and converges by itself once \
         shared_state.redis is configured; remove store",
    );
    refused(
        LimitDecl { store: some("redis"), ..valid("concurrency") },
        "store: concurrency cannot use store redis: what is in flight is counted in each replica's memory; \
         use store: share, which caps each replica at ceil(amount / live replicas)",
    );
    refused(
        LimitDecl { store: some("redis"), ..valid("tpm") },
        "store: tpm cannot use store redis: the script only acquires, so a signed settlement cannot be kept; \
         use store: local or store: share",
    );
    refused(
        LimitDecl { store: some("redis"), ..valid("rpm") },
        "store: store redis needs shared_state.redis, which is not configured; \
         add shared_state.redis with external: allow and an addr, or use store: local",
    );
    refused(
        LimitDecl { store: some("shared"), ..valid("rpm") },
        "store: \"shared\" is no store; did you mean share? use one of local, redis, share",
    );
    refused(
        LimitDecl { store: some("share"), algorithm: some("fixed_window"), ..valid("rpm") },
        "store: store share divides a gcra rate, and this limit counts by fixed_window; \
         use algorithm: gcra, or store: local",
    );
    assert_eq!(validate(&[LimitDecl { store: some("redis"), ..valid("rpm") }], true, 0).problems, [""; 0]);
    for kind in ["rpm", "tpm", "concurrency"] {
        let said = validate(&[LimitDecl { store: some("share"), ..valid(kind) }], true, 0);
        assert_eq!((said.problems, said.warnings), (vec![], vec![]), "{kind}");
    }
}

#[test]
fn a_posture_is_enforcing_or_shadow() {
    refused(
        LimitDecl { posture: some("shadwo"), ..valid("rpm") },
        "posture.mode: \"shadwo\" is no mode; did you mean shadow? use one of enforcing, shadow",
    );
}

#[test]
fn the_ledger_is_kept_as_long_as_the_longest_period_counts() {
    let limits = [valid("quota_tokens"), valid("budget_usd"), valid("rpm")];
    assert_eq!(validate(&limits, false, 31 * DAY_MS).problems, [""; 0]);
    assert_eq!(
        validate(&limits, false, 7 * DAY_MS).problems,
        ["ledger.retain: ledger.retain is 7d, and limit the_budget_usd counts by the month: after a restart its burn \
          could not be rebuilt; write retain: 31d or more"]
    );
    assert_eq!(validate(&[valid("rpm")], false, 0).problems, [""; 0], "a rate needs no rows");
}

#[test]
fn what_nothing_reads_is_a_warning() {
    warned(
        LimitDecl { burst: some("600"), ..valid("budget_usd") },
        "burst: burst is read by nothing on budget_usd; remove burst",
    );
    warned(
        LimitDecl { burst: some("600"), ..valid("concurrency") },
        "burst: burst is read by nothing on concurrency; remove burst",
    );
    warned(
        LimitDecl { burst: some("600"), algorithm: some("fixed_window"), ..valid("rpm") },
        "burst: burst is read by nothing under algorithm fixed_window; remove burst, or use algorithm: gcra",
    );
}

#[test]
fn a_share_without_redis_is_a_warning() {
    warned(
        LimitDecl { store: some("share"), ..valid("rpm") },
        "store: store share has no membership without shared_state.redis: N stays 1, so each replica enforces the full \
         amount, same as store local; add shared_state.redis with external: allow and an addr, or use store: local",
    );
}

#[test]
fn only_shadow_limits_are_a_warning() {
    let shadow = |kind: &str| LimitDecl { posture: some("shadow"), ..valid(kind) };
    assert_eq!(
        validate(&[shadow("rpm"), shadow("tpm")], false, 0).warnings,
        ["governance.limits: every limit is in shadow, so nothing is refused; \
          set posture: { mode: enforcing } on the limits that should refuse"]
    );
    assert_eq!(validate(&[shadow("rpm"), valid("tpm")], false, 0).warnings, [""; 0]);
    assert_eq!(validate(&[], false, 0).warnings, [""; 0]);
}

#[test]
fn every_problem_of_a_file_is_reported_in_one_run() {
    let limits = [
        LimitDecl { id: None, attach: None, amount: some("0"), period: None, store: some("x"), ..valid("rpm") },
        LimitDecl { period: some("7d"), ..valid("budget_usd") },
    ];
    let said = validate(&limits, false, 0);
    let paths: Vec<&str> = said.problems.iter().filter_map(|line| line.split(": ").next()).collect();
    let want = ["[0].id", "[0].attach", "[0].amount", "[0].period", "[0].store", "[1].period"];
    assert_eq!(paths, want.map(|path| format!("governance.limits{path}")));
}

#[test]
fn an_identity_ignores_defaults_spelled_out_and_everything_that_may_change_under_a_live_counter() {
    let identity = |decl: LimitDecl| {
        let input = CompileInput { limits: &[decl], redis: true, retain_ms: u64::MAX, ..CompileInput::default() };
        compile(input).limits.expect("valid").limits[0].identity.as_str().to_owned()
    };
    let plain = identity(valid("rpm"));
    assert_eq!(plain, "the_rpm|rpm|node:__global|*|*|*|gcra|60000000000ns");
    let spelled_out = LimitDecl {
        algorithm: some("gcra"),
        period: some("60s"),
        store: some("redis"),
        posture: some("shadow"),
        amount: some("7"),
        burst: some("9"),
        match_: Some(MatchDecl::default()),
        ..valid("rpm")
    };
    assert_eq!(identity(spelled_out), plain);
    let matching = |models: &[&str]| MatchDecl { model: list(models), ..Default::default() };
    let tpm = |models: &[&str]| identity(LimitDecl { match_: Some(matching(models)), ..valid("tpm") });
    assert_eq!(tpm(&["o1", "gpt-*"]), "the_tpm|tpm|node:__global|[\"gpt-*\",\"o1\"]|*|*|gcra|60000000000ns");
    assert_eq!(tpm(&["gpt-*", "o1", "o1"]), tpm(&["o1", "gpt-*"]));
    assert_eq!(tpm(&["*", "o1"]), identity(valid("tpm")));
    assert_ne!(tpm(&["a,b"]), tpm(&["a", "b"]));
    for other in [
        LimitDecl { id: some("other"), ..valid("rpm") },
        LimitDecl { attach: at_level("team"), ..valid("rpm") },
        LimitDecl { period: some("1h"), ..valid("rpm") },
        LimitDecl { algorithm: some("token_bucket"), ..valid("rpm") },
        LimitDecl { match_: Some(MatchDecl { endpoint: list(&["messages"]), ..Default::default() }), ..valid("rpm") },
    ] {
        assert_ne!(identity(other), plain);
    }
}
