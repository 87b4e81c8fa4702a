use super::*;

fn guard(admin: Option<&str>, peer: Option<&str>) -> Guard {
    let secret = |text: &str| Secret::new(text.to_owned());
    let secrets = Secrets {
        admin_token: admin.map(secret),
        peer_token: peer.map(secret),
        advertise_url: Some("http://TT-a.tt.svc:9090".to_owned()),
        ..Secrets::default()
    };
    Guard::new(&secrets, "tt-gov-a")
}

fn asked(guard: &Guard, method: &str, target: &str, headers: &[(&str, &str)]) -> Result<Shown, u16> {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_str(name).unwrap(), HeaderValue::from_str(value).unwrap()))
        .fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let target = target.parse().unwrap();
    let admitted = guard.admit(&target, &headers).and_then(|shown| {
        let writes = !matches!(method, Method::GET | Method::HEAD);
        if writes { Guard::may_write(shown, &method, &headers).map(|()| shown) } else { Ok(shown) }
    });
    admitted.map_err(|fault| fault.status.as_u16())
}

const HOST_HEADER: (&str, &str) = ("host", "127.0.0.1:9090");
const JSON: (&str, &str) = ("content-type", "application/json");
const LIST: &str = "/tt/api/v1/keys";

#[test]
fn only_names_of_this_replica_are_answered() {
    let guard = guard(None, None);
    for host in [
        "127.0.0.1:9090",
        "localhost:9090",
        "LOCALHOST",
        "localhost.",
        "[::1]:9090",
        "10.1.2.3:9090",
        "tt-a.tt.svc:9090",
        "tt-gov-a:9090",
    ] {
        assert_eq!(asked(&guard, "GET", LIST, &[("host", host)]), Ok(Shown::Nothing), "{host}");
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "a@127.0.0.1",
        "127.0.0.1@evil.example",
        "",
        "[::1",
        "local host",
    ] {
        assert_eq!(asked(&guard, "GET", LIST, &[("host", host)]), Err(421), "{host}");
        assert_eq!(
            asked(&guard, "GET", "/readyz", &[("host", host)]),
            Ok(Shown::Nothing),
            "probes name what they like"
        );
    }
    assert_eq!(asked(&guard, "GET", LIST, &[]), Err(400));
    assert_eq!(asked(&guard, "GET", LIST, &[HOST_HEADER, HOST_HEADER]), Err(400));
    assert_eq!(asked(&guard, "GET", "http://evil.example/tt/api/v1/keys", &[HOST_HEADER]), Err(421));
}

#[test]
fn the_admin_token_opens_everything_and_the_peer_token_what_is_read() {
    let guard = guard(Some("hunter2"), Some("peer3"));
    let ask = |method: &str, credential: &str| {
        asked(&guard, method, LIST, &[HOST_HEADER, JSON, ("authorization", credential)])
    };
    assert_eq!(ask("GET", "Bearer hunter2"), Ok(Shown::AdminToken));
    assert_eq!(ask("POST", "bearer hunter2"), Ok(Shown::AdminToken));
    assert_eq!(ask("GET", "Bearer peer3"), Ok(Shown::PeerToken));
    assert_eq!(ask("POST", "Bearer peer3"), Err(403));
    assert_eq!(ask("DELETE", "Bearer peer3"), Err(403));
    for wrong in ["Bearer hunter", "Bearer hunter22", "Bearer ", "Bearer", "hunter2", "Basic hunter2", "Bearerhunter2"]
    {
        assert_eq!(ask("GET", wrong), Err(401), "{wrong}");
    }
    let two = [HOST_HEADER, ("authorization", "Bearer hunter2"), ("authorization", "Bearer hunter2")];
    assert_eq!(asked(&guard, "GET", LIST, &two), Err(401), "two credentials are none");
    assert_eq!(asked(&guard, "GET", LIST, &[HOST_HEADER]), Err(401));
    assert_eq!(asked(&guard, "GET", "/nowhere", &[HOST_HEADER]), Err(401), "not even which paths exist");
    for path in OPEN_PATHS {
        assert_eq!(asked(&guard, "GET", path, &[HOST_HEADER]), Ok(Shown::Nothing));
    }
}

#[test]
fn a_write_from_another_sites_page_is_refused() {
    let guard = guard(None, None);
    let write = |headers: &[(&str, &str)]| asked(&guard, "POST", LIST, &[&[HOST_HEADER, JSON], headers].concat());
    assert_eq!(write(&[]), Ok(Shown::Nothing));
    assert_eq!(write(&[("origin", "http://127.0.0.1:9090"), ("sec-fetch-site", "same-origin")]), Ok(Shown::Nothing));
    for origin in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:8080",
        "http://127.0.0.1:9090.evil.example",
        "ftp://127.0.0.1:9090",
        "",
    ] {
        assert_eq!(write(&[("origin", origin)]), Err(403), "{origin}");
    }
    for site in ["cross-site", "same-site", "", "same-origin, cross-site"] {
        assert_eq!(write(&[("sec-fetch-site", site)]), Err(403), "{site}");
    }
    let read = [HOST_HEADER, ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")];
    assert_eq!(
        asked(&guard, "GET", LIST, &read),
        Ok(Shown::Nothing),
        "it cannot read the answer: no CORS header lets it"
    );
}

#[test]
fn a_write_carries_json() {
    let guard = guard(None, None);
    let write = |method: &str, content_type: Option<&str>| {
        let mut headers = vec![HOST_HEADER];
        headers.extend(content_type.map(|value| ("content-type", value)));
        asked(&guard, method, LIST, &headers)
    };
    assert_eq!(write("POST", Some("application/json; charset=utf-8")), Ok(Shown::Nothing));
    assert_eq!(write("POST", Some("Application/JSON")), Ok(Shown::Nothing));
    for plain in
        ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/plain; application/json"]
    {
        assert_eq!(write("POST", Some(plain)), Err(415), "{plain}");
    }
    assert_eq!(write("POST", None), Err(415));
    assert_eq!(write("DELETE", None), Ok(Shown::Nothing));
    assert_eq!(write("DELETE", Some("text/plain")), Err(415));
}
