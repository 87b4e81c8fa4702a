//! Upstreams and the URLs they stand at.

use super::super::default;
use super::super::diagnostics::Report;
use super::super::leaf::Text;
use super::super::read::Given;
use super::super::schema;
use super::super::types::*;
use super::{duration, is_id, required, texts, whole_u32};

/// Paths under /v1/ that the gateway serves itself; listing one as passthrough would put it past its own meter.
const SERVED_PATHS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
];

pub fn upstreams(given: Given<Vec<Given<schema::Upstream>>>, report: &mut Report) -> Vec<Upstream> {
    let items = given.0.unwrap_or_default();
    if items.is_empty() {
        report.error(
            "upstreams",
            "there is no upstream, so no request could go anywhere",
            "add one: - { id: openai, api: openai, base_url: \"https://api.openai.com/v1\" }",
        );
    }
    let items = items.into_iter().enumerate();
    items.filter_map(|(index, item)| Some(upstream(item.0?, &format!("upstreams[{index}]"), report))).collect()
}

fn upstream(file: schema::Upstream, at: &str, report: &mut Report) -> Upstream {
    let id = required(file.id, &format!("{at}.id"), "name the upstream, such as openai", report);
    if !id.is_empty() && !is_id(&id) {
        report.error(&format!("{at}.id"), format!("`{id}` is no id"), "use 1 to 64 of a-z, 0-9, _ and -");
    }
    let api = file.api.0.unwrap_or_else(|| {
        report.error(&format!("{at}.api"), "is missing", "write openai or anthropic: the API this upstream speaks");
        Api::Openai
    });
    let remedy = format!("write http:// or https://, a host and perhaps a path, or {MOCK_URL} for the built-in mock");
    let url = required(file.base_url, &format!("{at}.base_url"), &remedy, report);
    let base_url = parse_base_url(&url).unwrap_or_else(|why| {
        if !url.is_empty() {
            report.error(&format!("{at}.base_url"), why, remedy);
        }
        BaseUrl::Mock
    });
    let models = models(file.models, at, report);
    let passthrough = passthrough(file.passthrough, at, report);
    let default = default::upstream(id, api, base_url);
    Upstream {
        api_key_env: file.api_key_env.0,
        models: models.unwrap_or(default.models),
        weight: file.weight.0.map_or(default.weight, |weight| whole_u32(weight.0)),
        connect_timeout: duration(file.connect_timeout, default.connect_timeout),
        first_byte_timeout: duration(file.first_byte_timeout, default.first_byte_timeout),
        passthrough,
        idle_timeout: duration(file.idle_timeout, default.idle_timeout),
        max_idle_per_core: file.max_idle_per_core.0.map_or(default.max_idle_per_core, |count| whole_u32(count.0)),
        stream_usage: file.stream_usage.0.unwrap_or(default.stream_usage),
        ..default
    }
}

fn models(given: Given<Vec<Given<Text>>>, at: &str, report: &mut Report) -> Option<Vec<String>> {
    let list = given.0?;
    if list.is_empty() {
        report.error(
            &format!("{at}.models"),
            "the list is empty, so nothing could match",
            "write \"*\" for every model",
        );
    }
    let mut globs = Vec::with_capacity(list.len());
    for (index, glob) in texts(Given(Some(list))) {
        if glob.is_empty() || glob.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let path = format!("{at}.models[{index}]");
            report.error(&path, format!("`{glob}` is no model glob"), "write a model name, with * and ? as wildcards");
        }
        globs.push(glob);
    }
    Some(globs)
}

fn passthrough(given: Given<Vec<Given<Text>>>, at: &str, report: &mut Report) -> Vec<String> {
    let mut paths = Vec::new();
    for (index, path) in texts(given) {
        let place = format!("{at}.passthrough[{index}]");
        if SERVED_PATHS.contains(&path.as_str()) {
            report.error(&place, format!("`{path}` is served and metered already"), "remove the entry");
        } else if !is_plain_v1_path(&path) {
            report.error(
                &place,
                format!("`{path}` is no path that could be passed through"),
                "write an exact path under /v1/ without a query, such as /v1/images/generations",
            );
        }
        paths.push(path);
    }
    paths
}

/// An exact path that no normalisation would change: what is governed is what is forwarded.
fn is_plain_v1_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/v1/") else { return false };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~');
    rest.bytes().all(plain) && rest.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}

/// Takes a base URL apart. The message of an error does not repeat credentials that stand in the URL.
pub fn parse_base_url(text: &str) -> Result<BaseUrl, String> {
    if text == MOCK_URL {
        return Ok(BaseUrl::Mock);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("`{text}` is no URL with http:// or https:// in front"));
    };
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return Err(format!("the scheme `{scheme}` is neither http nor https")),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(
            "the URL carries credentials; a provider key belongs into the variable api_key_env names".to_owned()
        );
    }
    if path.contains(['?', '#']) {
        return Err(format!("`{text}` carries a query or a fragment, which a base URL cannot"));
    }
    let path_ok = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>');
    if !path.bytes().all(path_ok) || path.contains("//") || path.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(format!("the path of `{text}` is not plain"));
    }
    let (host, port) = split_authority(authority).ok_or_else(|| format!("`{authority}` is no host with a port"))?;
    let port = port.unwrap_or(if https { 443 } else { 80 });
    Ok(BaseUrl::Http(HttpBase { https, host, port, base_path: path.trim_end_matches('/').to_owned() }))
}

/// Host (lower case, IPv6 without brackets) and port of `host`, `host:port` or `[v6]:port`.
pub fn split_authority(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (address, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => {
            let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
            let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host.is_empty() || host.len() > 253 || !host.bytes().all(name) {
                return None;
            }
            (host, port)
        }
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let port = match port {
        Some(port) => Some(port.parse::<u16>().ok().filter(|value| digits(port) && *value > 0)?),
        None => None,
    };
    Some((host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn http(text: &str) -> HttpBase {
        match parse_base_url(text) {
            Ok(BaseUrl::Http(http)) => http,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_url_is_taken_apart_and_put_together_again() {
        for (text, host, port, base_path, again) in [
            ("https://api.openai.com/v1", "api.openai.com", 443, "/v1", "https://api.openai.com/v1"),
            ("https://api.anthropic.com/", "api.anthropic.com", 443, "", "https://api.anthropic.com"),
            ("http://127.0.0.1:11434/v1/", "127.0.0.1", 11_434, "/v1", "http://127.0.0.1:11434/v1"),
            ("HTTP://Local_Host:80", "local_host", 80, "", "http://local_host"),
            ("https://[::1]:8443/a", "::1", 8_443, "/a", "https://[::1]:8443/a"),
        ] {
            let base = http(text);
            assert_eq!((base.host.as_str(), base.port, base.base_path.as_str()), (host, port, base_path), "{text}");
            assert_eq!(BaseUrl::Http(base).to_string(), again);
        }
        assert_eq!(parse_base_url(MOCK_URL), Ok(BaseUrl::Mock));
    }

    #[test]
    fn a_callers_v1_path_lands_where_the_sdk_of_the_family_would_send_it() {
        for (api, base, prefix) in [
            (Api::Openai, "https://api.openai.com/v1", "/v1"),
            (Api::Openai, "http://127.0.0.1:11434", "/v1"),
            (Api::Openai, "https://generativelanguage.googleapis.com/v1beta/openai", "/v1beta/openai"),
            (Api::Anthropic, "https://api.anthropic.com", "/v1"),
            (Api::Anthropic, "https://api.anthropic.com/v1", "/v1"),
            (Api::Anthropic, "https://proxy.example/anthropic", "/anthropic/v1"),
        ] {
            assert_eq!(http(base).v1_prefix(api), prefix, "{base}");
        }
    }

    #[test]
    fn what_could_send_a_request_elsewhere_is_no_base_url() {
        for text in [
            "",
            "api.openai.com",
            "ftp://h",
            "https://",
            "https://:443",
            "https://h:0",
            "https://h:+80",
            "https://h:99999",
            "https://[::1",
            "https://[x]",
            "https://a b",
            "https://h/v1?key=1",
            "https://h/v1#x",
            "https://h//v1",
            "https://h/../v1",
            "https://h/\r\nX: y",
            "builtin://other",
            "https://h${X}/v1",
        ] {
            assert!(parse_base_url(text).is_err(), "{text}");
        }
        let why = parse_base_url("https://user:hunter2@h/v1").unwrap_err();
        assert!(why.contains("credentials") && !why.contains("hunter2"));
    }

    #[test]
    fn a_passthrough_path_is_exact() {
        assert!(is_plain_v1_path("/v1/images/generations"));
        for path in ["/v1/", "/v1", "/v2/x", "/v1/a/", "/v1//a", "/v1/../a", "/v1/a?b", "/v1/%61", "v1/a", ""] {
            assert!(!is_plain_v1_path(path), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_url_or_refused_and_what_is_one_reads_back(text in "(https?://)?[a-zA-Z0-9\\[\\]:./@?#_ é-]{0,30}") {
            if let Ok(base) = parse_base_url(&text) {
                prop_assert_eq!(parse_base_url(&base.to_string()), Ok(base));
            }
        }
    }
}
