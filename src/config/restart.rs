//! Which changes a reload cannot take over: sockets, threads, folders and connections are made once, at boot.

use super::types::Config;

/// The keys that differ and need a restart, in the order of the file. Everything else takes effect with the reload.
pub fn needs_restart(running: &Config, next: &Config) -> Vec<&'static str> {
    let (was, is) = (&running.server, &next.server);
    let changed = [
        ("server.listen", was.listen != is.listen),
        ("server.admin_listen", was.admin_listen != is.admin_listen),
        ("server.admin_token_env", was.admin_token_env != is.admin_token_env),
        ("server.cores", was.cores != is.cores),
        ("server.driver", was.driver != is.driver),
        ("server.pin", was.pin != is.pin),
        // New files behind the same names are read on SIGHUP; turning TLS on or off is another listener.
        ("server.tls", was.tls.is_some() != is.tls.is_some()),
        ("data_dir", running.data_dir != next.data_dir),
        ("replica", running.replica != next.replica),
        ("ledger", running.ledger != next.ledger),
        ("shared_state", running.shared_state != next.shared_state),
        ("fleet", running.fleet != next.fleet),
    ];
    changed.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::default::EMBEDDED;
    use super::super::load::load_text;
    use super::*;

    fn config(text: &str) -> Config {
        load_text("t", text).unwrap().config
    }

    #[test]
    fn limits_upstreams_and_time_limits_reload_and_listeners_and_tiers_do_not() {
        let running = config(EMBEDDED);
        let live = EMBEDDED.replace("amount: 60", "amount: 61").replace("listen: 127.0.0.1:8790", "head_timeout: 5s");
        assert_eq!(needs_restart(&running, &config(&live)), Vec::<&str>::new());
        let other = EMBEDDED.replace("8790", "8791").replace("9090", "9091")
            + "shared_state: { redis: { external: allow, addr: \"127.0.0.1:6379\" } }\n";
        assert_eq!(needs_restart(&running, &config(&other)), ["server.listen", "server.admin_listen", "shared_state"]);
    }
}
