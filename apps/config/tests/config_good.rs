//! Good configurations: defaults, resolved values, examples, documentation, round trip.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evergate_config::model::{
    AccessLog, CertificateSource, ClientCertificates, ClusterMode, ClusterTiming, CostSource, HandshakeCosts,
    HealthCheck, ListenAddress, LogFields, LogTime, Policy, PoolId, Protocol, Renewal, ServerSource,
    SessionFallback, Sessions, StatusRange, Steering, Sticky, TlsId, TlsVersion,
};
use evergate_config::schema::SECTIONS;
use evergate_config::{Config, Loaded, Problem, World, choose_node, load, one_line, parse_with};
use evergate_http::ForwardedTrust;

/// Machine where every file exists with good content, and every name resolves to 10.9.9.9.
struct Complete;

impl World for Complete {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let label = match path.extension().and_then(|e| e.to_str()) {
            Some("pem") => "CERTIFICATE",
            _ if path.ends_with("cluster.key") => return Ok(b"0123456789abcdefABCDEF0123456789".repeat(2)),
            Some("key") => "PRIVATE KEY",
            _ => return Ok(vec![0xa5; 64]),
        };
        Ok(format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n").into_bytes())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::from(([10, 9, 9, 9], port))])
    }
}

fn parsed(text: &str) -> Loaded {
    parse_with(text, "test.toml", Path::new("/base"), &Complete)
        .unwrap_or_else(|p| panic!("{}\n{text}", shown(&p)))
}

fn shown(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

const SMALL: &str = "[[listeners]]\nname = \"public\"\naddress = \":9443\"\nprotocol = \"https\"\npool = \"web\"\n\
    [[certificates]]\nname = \"local\"\nself_signed = [\"localhost\"]\n\
    [[pools]]\nname = \"web\"\n[[pools.servers]]\naddress = \"app.internal:8080\"\n";

#[test]
fn small_file_gets_the_documented_defaults() {
    let loaded = parsed(SMALL);
    assert_eq!(loaded.warnings, []);
    let config = loaded.config;

    let listener = &config.listeners[0];
    assert_eq!(listener.address, ListenAddress::any(9443));
    assert_eq!(listener.protocol, Protocol::Https);
    assert_eq!(listener.pool, Some(PoolId(0)));
    assert_eq!(listener.tls.as_ref().unwrap().settings, TlsId::BUILT_IN);
    assert_eq!(listener.tls.as_ref().unwrap().certificates.len(), 1);
    assert_eq!(listener.limits, config.limits.listener);
    assert!(!listener.trust_forwarded.is_possible() && listener.redirect_to_https.is_none());

    let pool = config.pool(PoolId(0));
    assert_eq!(
        (pool.policy, pool.sticky, pool.sticky_cookie.as_str()),
        (Policy::PowerOfTwo, Sticky::None, "EVERGATE_web")
    );
    assert_eq!((pool.retries, pool.queue_max, pool.keep_alive_idle_max), (2, 1024, 256));
    assert_eq!(pool.response_timeout, config.timeouts.response);
    assert_eq!((&pool.tls, &pool.health), (&None, &None));
    assert_eq!(pool.servers[0].name, "app.internal:8080");
    assert_eq!(pool.servers[0].host, "app.internal");
    assert_eq!(pool.servers[0].address(), "10.9.9.9:8080".parse().unwrap());
    assert_eq!((pool.servers[0].weight, pool.servers[0].connections_max), (1, None));

    let timeouts = &config.timeouts;
    assert_eq!(timeouts.handshake, Duration::from_secs(10));
    assert_eq!(timeouts.request_head, Duration::from_secs(15));
    assert_eq!(timeouts.request_body, Duration::from_secs(30));
    assert_eq!(timeouts.keep_alive, Duration::from_secs(75));
    assert_eq!(timeouts.response, Duration::from_secs(60));
    assert_eq!(timeouts.tunnel_idle, Duration::from_secs(4 * 3600));
    assert_eq!(timeouts.write_stall, Duration::from_secs(30));
    assert_eq!(timeouts.drain, Duration::from_secs(30));

    let limits = &config.limits;
    assert_eq!(limits.handshakes_per_turn.get(), 8);
    assert_eq!(limits.event_batching, Duration::from_micros(200));
    assert_eq!(limits.buffers_bytes_max.get(), 512 * 1024 * 1024);
    assert_eq!(limits.listener.connections_max, 100_000);
    assert_eq!(limits.listener.connections_per_source_max, None);
    assert_eq!((limits.listener.head_bytes_max, limits.listener.headers_max), (16_384, 100));
    assert_eq!((limits.listener.body_bytes_max, limits.listener.body_prefix_bytes), (None, 65_536));
    assert_eq!(limits.listener.requests_per_connection_max, None);
    assert_eq!(limits.listener.bytes_per_s_min.unwrap().get(), 100);

    assert_eq!(config.logs.access, AccessLog::Stdout);
    assert_eq!((config.logs.fields, config.logs.time), (LogFields::default(), LogTime::Unix));
    assert_eq!(config.admin.socket.as_deref(), Some(Path::new("/run/evergate/admin.sock")));
    assert_eq!(config.admin.metrics_listen, None);
    assert_eq!((config.node.workers, &config.node.user), (None, &None));
    assert!(config.rules.specs.is_empty());
}

#[test]
fn built_in_tls_settings_are_those_of_an_empty_table() {
    let config = parsed(&format!("{SMALL}[tls.plain]\n")).config;
    let (built_in, mut plain) = (&config.tls[0], config.tls[1].clone());
    plain.name.clear();
    assert_eq!(*built_in, plain);
    assert_eq!((built_in.min_version, built_in.max_version), (TlsVersion::V1_2, TlsVersion::V1_3));
    assert_eq!(built_in.client_certificates, ClientCertificates::None);
}

#[test]
fn every_part_of_a_full_file_reaches_the_model() {
    let text = format!(
        "[node]\nworkers = 3\nuser = \"evergate\"\npid_file = \"pid\"\n\
         [timeouts]\nresponse_ms = 1000\n\
         [limits]\nheaders_max = 50\nconnections_per_source_max = 7\n\
         [logs]\naccess = \"access.json\"\nfields = [\"referer\", \"client_subject\"]\ntime = \"iso\"\n\
         [admin]\nsocket = \"off\"\nmetrics_listen = \"127.0.0.1:9090\"\n\
         [tls.strict]\nmin_version = \"1.3\"\nclient_certificates = \"optional\"\nclient_ca = \"ca.pem\"\n\
         ticket_keys = \"tickets\"\nticket_rotate_s = 60\n[tls.a]\ntickets = false\n{}",
        "[[listeners]]\nname = \"l\"\naddress = \"[::1]:1\"\nprotocol = \"https\"\ntls = \"strict\"\n\
         certificates = [\"b\", \"a\"]\n\
         pool = \"p\"\ntrust_forwarded = true\nproxy_protocol = true\n\
         trusted_proxies = [\"10.0.0.0/8\", \"::1\"]\nlimits = { headers_max = 9 }\n\
         [[listeners]]\nname = \"r\"\naddress = \"[::1]:80\"\nprotocol = \"http\"\nredirect_to_https = true\n\
         trust_forwarded = [\"10.1.2.3/8\", \"2001:db8::1\"]\n\
         [[certificates]]\nname = \"a\"\nchain = \"a.pem\"\nkey = \"/keys/a.key\"\n\
         [[certificates]]\nname = \"b\"\nself_signed = [\"b\", \"*.b\", \"::1\"]\n\
         [[pools]]\nname = \"p\"\nsticky = \"cookie\"\nsticky_cookie = \"S\"\nresponse_timeout_ms = 5\n\
         [[pools.servers]]\nname = \"s\"\naddress = \"[2001:db8::1]:80\"\nweight = 9\nconnections_max = 4\n\
         [pools.tls]\nserver_name = \"x\"\nclient_chain = \"c.pem\"\nclient_key = \"c.key\"\n\
         [pools.health]\nexpect_status = [200, \"300-302\"]\nhost = \"h:8\"\nrise = 5\n\
         [[pools]]\nname = \"q\"\npolicy = \"least_expected_completion\"\nsticky = \"source\"\n\
         sticky_load_percent_max = 125\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n[pools.health]\nkind = \"tcp\"\n\
         [[rules]]\nname = \"r1\"\nwhen = 'path.path_prefix(\"/q\")'\nroute = \"q\"\nlisteners = [\"l\"]\n",
    );
    let config = parsed(&text).config;
    assert_eq!(config.node.worker_count().get(), 3);
    assert_eq!(config.node.pid_file.as_deref(), Some(Path::new("/base/pid")));
    assert_eq!(config.logs.access, AccessLog::File("/base/access.json".into()));
    let fields = LogFields { client_subject: true, user_agent: false, referer: true };
    assert_eq!((config.logs.fields, config.logs.time), (fields, LogTime::Iso));
    assert_eq!(
        (&config.admin.socket, config.admin.metrics_listen.map(|address| address.to_string())),
        (&None, Some("127.0.0.1:9090".to_owned()))
    );

    let listener = &config.listeners[0];
    let tls = listener.tls.as_ref().unwrap();
    let settings = config.tls_settings(tls.settings);
    assert_eq!(settings.name, "strict");
    assert_eq!(settings.client_ca.as_deref(), Some(Path::new("/base/ca.pem")));
    assert_eq!(settings.tickets.as_ref().unwrap().rotate, Duration::from_secs(60));
    assert_eq!(config.tls[1].tickets, None);
    let names: Vec<&str> = tls.certificates.iter().map(|c| config.certificate(*c).name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(
        config.certificates[0].source,
        CertificateSource::Files { chain: "/base/a.pem".into(), key: "/keys/a.key".into() }
    );
    assert_eq!((listener.limits.headers_max, config.limits.listener.headers_max), (9, 50));
    assert_eq!(listener.limits.connections_per_source_max.unwrap().get(), 7);
    let trusted: Vec<String> = listener.trusted_proxies.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(trusted, ["10.0.0.0/8", "::1/128"]);
    assert_eq!(config.listeners[1].trusted_proxies, None);
    assert_eq!(listener.trust_forwarded, ForwardedTrust::AllPeers);
    assert_eq!(config.listeners[1].redirect_to_https, Some(1));
    let networks = ["10.0.0.0/8", "2001:db8::1/128"].map(|text| text.parse().unwrap());
    assert_eq!(config.listeners[1].trust_forwarded, ForwardedTrust::Networks(networks.to_vec()));

    let pool = &config.pools[0];
    assert_eq!((pool.sticky, pool.response_timeout), (Sticky::Cookie, Duration::from_millis(5)));
    assert_eq!(config.pools[1].response_timeout, Duration::from_secs(1));
    assert_eq!((pool.servers[0].weight, pool.servers[0].connections_max.unwrap().get()), (9, 4));
    assert_eq!(pool.servers[0].host, "2001:db8::1");
    assert_eq!(pool.tls.as_ref().unwrap().client.as_ref().unwrap().key, Path::new("/base/c.key"));
    let health = pool.health.as_ref().unwrap();
    let expect = vec![StatusRange { first: 200, last: 200 }, StatusRange { first: 300, last: 302 }];
    assert_eq!(health.check, HealthCheck::Http { path: "/".into(), host: Some("h:8".into()), expect });
    assert_eq!((health.rise, health.fall), (5, 3));
    assert_eq!(config.pools[1].health.as_ref().unwrap().check, HealthCheck::Tcp);
    assert_eq!(config.rules.specs[0].route.as_deref(), Some("q"));
    assert_eq!(config.pool_named("q"), Some(PoolId(1)));
    assert_eq!(config.rules.specs[0].listeners, ["l"]);
}

#[test]
fn server_connections_start_from_the_node_or_the_client() {
    let source = |more: &str| {
        let loaded = parsed(&SMALL.replace("[[pools.servers]]", &format!("{more}[[pools.servers]]")));
        assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
        assert_round_trip(&loaded, Path::new("/base"));
        loaded.config.pools[0].source
    };
    assert_eq!(source(""), ServerSource::Node);
    assert_eq!(source("source = \"node\"\n"), ServerSource::Node);
    assert_eq!(source("source = \"client\"\n"), ServerSource::Client);
}

/// Pool with this policy and further keys.
fn session_pool(policy: &str, more: &str) -> Loaded {
    parsed(&format!(
        "[[listeners]]\nname = \"l\"\naddress = \":9443\"\nprotocol = \"passthrough\"\npool = \"p\"\n\
         [[pools]]\nname = \"p\"\npolicy = \"{policy}\"\n[[pools.servers]]\naddress = \"10.0.0.1:443\"\n{more}"
    ))
}

#[test]
fn session_policy_gets_the_defaults_of_the_plans() {
    let loaded = session_pool("sslsard", "");
    assert_eq!(loaded.warnings, []);
    assert_round_trip(&loaded, Path::new("/base"));
    let pool = &loaded.config.pools[0];
    assert_eq!(pool.policy, Policy::Sslsard);
    let expected = Sessions {
        lifetime: Duration::from_secs(300),
        fallback: SessionFallback::Address,
        renewal: Renewal::Fixed,
        remembered_max: 200_000,
        cost_source: CostSource::Configured,
        costs: HandshakeCosts { full_us: 471, resumed_us: 20 },
        slice: Duration::from_secs(2),
        alpha: [10.0, 1.0],
        lambda: [1.0, 2.0],
        lard_low: 25,
        lard_high: 65,
        bounded_load_percent: 125,
    };
    assert_eq!((pool.sessions.as_ref(), pool.servers[0].costs), (Some(&expected), None));
    assert_eq!(parsed(SMALL).config.pools[0].sessions, None);
    assert!(!parsed(SMALL).effective_toml().contains("sessions"), "shown where it has no effect");
}

#[test]
fn every_key_of_sessions_reaches_the_model() {
    let own = "full_us = 900\nresumed_us = 90\n";
    let table = "[pools.sessions]\nlifetime_s = 60\nrenewal = \"sliding\"\nremembered_max = 7\nfull_us = 500\n\
        resumed_us = 130\nslice_ms = 1000\nalpha = [2.5, 3]\nlambda = [0.5, 1]\nfallback = \"sni\"\n\
        handshake_costs = \"measured\"\n";
    let loaded = session_pool("sslsard", &format!("{own}{table}"));
    assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
    assert_round_trip(&loaded, Path::new("/base"));
    let pool = &loaded.config.pools[0];
    assert_eq!(pool.servers[0].costs, Some(HandshakeCosts { full_us: 900, resumed_us: 90 }));
    let sessions = pool.sessions.as_ref().unwrap();
    assert_eq!((sessions.lifetime, sessions.renewal), (Duration::from_secs(60), Renewal::Sliding));
    assert_eq!(sessions.costs, HandshakeCosts { full_us: 500, resumed_us: 130 });
    assert_eq!((sessions.fallback, sessions.cost_source), (SessionFallback::Sni, CostSource::Measured));
    assert_eq!((sessions.remembered_max, sessions.slice), (7, Duration::from_secs(1)));
    assert_eq!((sessions.alpha, sessions.lambda), ([2.5, 3.0], [0.5, 1.0]));
    let lard = session_pool("lard", "[pools.sessions]\nlard_low = 3\nlard_high = 4\n").config;
    let lard = lard.pools[0].sessions.as_ref().unwrap();
    assert_eq!((lard.lard_low, lard.lard_high), (3, 4));
    let hash = session_pool("bounded_hash", "[pools.sessions]\nbounded_load_percent = 110\n").config;
    assert_eq!(hash.pools[0].sessions.as_ref().unwrap().bounded_load_percent, 110);
}

/// Checks that the effective configuration, with its defaults written out, has the same meaning and is its own
/// effective configuration.
fn assert_round_trip(loaded: &Loaded, base_dir: &Path) {
    let written = loaded.effective_toml();
    let again = parse_with(&written, "effective.toml", base_dir, &Complete)
        .unwrap_or_else(|p| panic!("{}\n{written}", shown(&p)));
    assert_eq!(again.effective_toml(), written);
    let parts = |c: &Config| {
        (
            (c.node.clone(), c.listeners.clone(), c.certificates.clone(), c.tls.clone(), c.pools.clone()),
            (c.rules.specs.clone(), c.timeouts.clone(), c.limits.clone(), c.logs.clone(), c.admin.clone()),
            c.cluster.clone(),
        )
    };
    assert_eq!(parts(&again.config), parts(&loaded.config));
}

#[test]
fn sticky_keys_that_only_rules_use_load_without_a_warning() {
    let keys = "sticky_cookie = \"Q\"\nsticky_load_percent_max = 150\n";
    let pool = format!("[[pools]]\nname = \"q\"\n{keys}[[pools.servers]]\naddress = \"10.0.0.1:80\"\n");
    let rule = |name: &str, sticky: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nwhen = 'path == \"/{name}\"'\nroute = \"q\"\nsticky = \"{sticky}\"\n"
        )
    };
    let (cookie, source) = (rule("a", "cookie"), rule("b", "source"));
    assert_eq!(parsed(&format!("{SMALL}{pool}{cookie}{source}")).warnings, []);
    let without = |rule: &str| parsed(&format!("{SMALL}{pool}{rule}")).warnings;
    assert_eq!(without(&source)[0].key, "pools[1].sticky_cookie");
    assert_eq!(without(&cookie)[0].key, "pools[1].sticky_load_percent_max");
}

#[test]
fn sticky_pools_have_cookies_of_their_own() {
    let pool = |name: &str| {
        format!(
            "[[pools]]\nname = \"{name}\"\nsticky = \"cookie\"\nservers = [{{ address = \"10.0.0.1:80\" }}]\n\
             [[rules]]\nname = \"{name}\"\nwhen = 'path == \"/{name}\"'\nroute = \"{name}\"\n"
        )
    };
    let loaded = parsed(&format!("{SMALL}{}{}", pool("a"), pool("b")));
    assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
    let cookies: Vec<&str> = loaded.config.pools.iter().map(|pool| pool.sticky_cookie.as_str()).collect();
    assert_eq!(cookies, ["EVERGATE_web", "EVERGATE_a", "EVERGATE_b"]);
}

#[test]
fn denials_whose_field_a_rule_sets_load_without_a_warning() {
    let rules = "[[rules]]\nname = \"all\"\nset_response_headers = { allow = \"GET\" }\n\
        [[rules]]\nname = \"a\"\nwhen = 'path == \"/a\"'\ndeny = 405\n\
        [[rules]]\nname = \"b\"\nwhen = 'path == \"/b\"'\ndeny = 401\n\
        set_response_headers = { www-authenticate = \"Bearer\" }\n\
        [[rules]]\nname = \"c\"\nwhen = 'path == \"/c\"'\ndeny = 404\n";
    let listener = "[[listeners]]\nname = \"l\"\naddress = \":80\"\nprotocol = \"http\"\npool = \"p\"\n";
    let pool = "[[pools]]\nname = \"p\"\nservers = [{ address = \"10.0.0.1:80\" }]\n";
    let loaded = parsed(&format!("{listener}{pool}{rules}"));
    assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
}

#[test]
fn toml_blocks_of_the_documentation_load_and_round_trip() {
    let page = |name: &str| fs::read_to_string(repository().join(name)).unwrap();
    let text = page("docs/reference/configuration.md") + &page("docs/reference/rules.md");
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(blocks.len() >= 4, "the documentation has four complete examples");
    for block in blocks {
        let loaded = parsed(block);
        assert_eq!(loaded.warnings, [], "{block}\n{}", shown(&loaded.warnings));
        assert_round_trip(&loaded, Path::new("/base"));
    }
}

#[test]
fn example_files_load_without_a_warning_and_round_trip() {
    let mut seen = 0;
    for entry in fs::read_dir(repository().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let is_other = path.ends_with("sslsard.toml");
        if path.extension().is_some_and(|e| e == "toml") && !is_other {
            // The repository has no secrets.
            let (loaded, folder) = match path.ends_with("cluster.toml") {
                true => (parsed(&fs::read_to_string(&path).unwrap()), Path::new("/base")),
                false => (load(&path).unwrap_or_else(|p| panic!("{}", shown(&p))), path.parent().unwrap()),
            };
            assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
            assert_round_trip(&loaded, folder);
            seen += 1;
        }
    }
    assert!(seen >= 3);
}

#[test]
fn reference_in_the_documentation_is_the_schema() {
    let path = "docs/reference/configuration.md";
    let text = fs::read_to_string(repository().join(path)).unwrap();
    // The page wraps its lines.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&text);
    for section in SECTIONS {
        let expected = format!("### `{}`\n\n{}\n\n{}", section.header, section.about, section.markdown());
        assert!(page.contains(&words(&expected)), "{path} must contain\n\n{expected}");
    }
}

#[test]
fn every_example_value_of_the_schema_has_the_type_of_its_key() {
    for section in SECTIONS {
        for key in section.keys.iter().filter(|k| !k.example.is_empty()) {
            let text = format!("{} = {}", key.name, key.example);
            assert!(toml::from_str::<toml::Table>(&text).is_ok(), "{}: {text}", section.header);
        }
    }
}

#[test]
fn file_that_cannot_be_read_is_a_problem_and_not_a_panic() {
    let missing = std::env::temp_dir().join("evergate-no-such-configuration.toml");
    for path in [missing, std::env::temp_dir()] {
        let problems = load(&path).unwrap_err();
        assert!(problems[0].what.contains("cannot be read"), "{}", problems[0]);
    }
}

#[test]
fn one_line_makes_an_https_listener_with_one_pool() {
    let to = ["127.0.0.1:8080".to_owned(), "127.0.0.1:8081".to_owned()];
    let config = one_line(":8443", &to, None, None).unwrap();
    assert_eq!(config.listeners[0].address, ListenAddress::any(8443));
    assert_eq!(config.listeners[0].protocol, Protocol::Https);
    assert_eq!((config.pools[0].name.as_str(), config.pools[0].policy), ("default", Policy::PowerOfTwo));
    assert_eq!(config.pools[0].servers.len(), 2);
    assert!(matches!(&config.certificates[0].source, CertificateSource::SelfSigned { .. }));
}

#[test]
fn one_line_places_a_problem_at_its_option() {
    let to = ["127.0.0.1:8080".to_owned()];
    let none = Path::new("/nonexistent/evergate.pem");
    for (problem, option) in [
        (one_line("8443", &to, None, None), "--listen"),
        (one_line(":8443", &["x\"y\n:1".to_owned()], None, None), "--to"),
        (one_line(":8443", &[], None, None), "--to"),
        (one_line(":8080", &to, None, None), "--to"),
        (one_line(":8443", &to, Some(none), None), "--key"),
        (one_line(":8443", &to, None, Some(none)), "--cert"),
        (one_line(":8443", &to, Some(none), Some(none)), "--cert"),
    ] {
        let problem = problem.unwrap_err();
        assert_eq!(problem.key, option, "{problem}");
        assert_eq!((problem.line, problem.file.as_str()), (0, "command line"));
    }
}

#[test]
fn one_line_names_the_remedy_for_a_server_given_twice() {
    let to = ["127.0.0.1:8080".to_owned(), "127.0.0.1:8080".to_owned()];
    let problem = one_line(":8443", &to, None, None).unwrap_err();
    assert_eq!((problem.key.as_str(), problem.what.as_str()), ("--to", "another `--to` is the same server"));
    assert!(problem.remedy.contains("once") && !problem.remedy.contains("`weight`"), "{problem}");
}

const CLUSTER: &str = "[node]\nworkers = 2\n\
    [[listeners]]\nname = \"l\"\naddress = \"203.0.113.10:80\"\nprotocol = \"tcp\"\npool = \"p\"\n\
    [[pools]]\nname = \"p\"\nservers = [{ address = \"10.0.1.50:80\" }]\n\
    [cluster]\nname = \"edge\"\nkey_file = \"cluster.key\"\naddresses = [\"203.0.113.10\"]\n\
    server_source = [\"10.0.1.100\"]\ninside_interface = \"eth1\"\noutside_interface = \"eth0\"\n\
    witness = [\"10.0.1.254\"]\n@@\n\
    [[cluster.nodes]]\nnumber = 2\ninside = \"10.0.1.2\"\noutside = \"203.0.113.2\"\n\
    [[cluster.nodes]]\nnumber = 1\ninside = \"10.0.1.1\"\noutside = \"203.0.113.1\"\n";

#[test]
fn small_cluster_gets_the_documented_defaults() {
    let loaded = parsed(&CLUSTER.replace("@@", ""));
    assert_eq!(loaded.warnings, [], "{}", shown(&loaded.warnings));
    assert_round_trip(&loaded, Path::new("/base"));
    let cluster = loaded.config.cluster.unwrap();
    assert_eq!((cluster.name.as_str(), cluster.node, cluster.virtual_mac), ("edge", None, None));
    assert_eq!(cluster.nodes.iter().map(|node| node.number.get()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cluster.key_file, Path::new("/base/cluster.key"));
    assert_eq!((cluster.backups.unwrap().get(), cluster.weight, cluster.port.get()), (1, 100, 7400));
    assert_eq!((cluster.mode, cluster.steering), (ClusterMode::Witness, Steering::Steer));
    assert_eq!((cluster.server_ports_first, cluster.ports_per_bucket), (32_768, 27));
    assert_eq!((cluster.timing, cluster.flows_max), (ClusterTiming::Auto, 262_144));
    assert!(cluster.stateless_accept);
    assert_eq!(cluster.pins, Path::new("/sys/fs/bpf/evergate"));
    assert!(
        cluster.moves("203.0.113.10:80".parse().unwrap())
            && !cluster.moves("203.0.113.1:80".parse().unwrap())
    );
}

#[test]
fn every_key_of_a_cluster_reaches_the_model() {
    let text = CLUSTER.replace(
        "witness = [\"10.0.1.254\"]\n@@",
        "node = 2\nbackups = \"all\"\nmode = \"majority\"\n\
        virtual_mac = \"02:00:5E:00:00:0a\"\nsteering = \"flood\"\nport = 9000\nserver_ports_first = 2000\n\
        ports_per_bucket = 10\npins = \"/sys/fs/bpf/other\"\ntiming = \"virtual_machine\"\nflows_max = 5000\n\
        stateless_accept = false\nweight = 0",
    );
    let loaded = parsed(&text);
    assert_round_trip(&loaded, Path::new("/base"));
    let cluster = loaded.config.cluster.unwrap();
    assert_eq!((cluster.node.unwrap().get(), cluster.backups, cluster.weight), (2, None, 0));
    assert_eq!((cluster.mode, cluster.steering), (ClusterMode::Majority, Steering::Flood));
    assert_eq!(cluster.virtual_mac, Some([2, 0, 0x5e, 0, 0, 10]));
    assert_eq!((cluster.port.get(), cluster.server_ports_first, cluster.ports_per_bucket), (9000, 2000, 10));
    assert_eq!((cluster.timing, cluster.flows_max), (ClusterTiming::VirtualMachine, 5000));
    assert!(!cluster.stateless_accept);
}

#[test]
fn command_line_overrides_the_node_number_of_the_file() {
    let chosen = |text: &str, node| {
        let mut config = parsed(text).config;
        choose_node(&mut config, node, "test.toml").map(|()| config.cluster.map(|c| c.node.unwrap().get()))
    };
    let (without, with) = (CLUSTER.replace("@@", ""), CLUSTER.replace("@@", "node = 2"));
    assert_eq!(chosen(&without, Some(1)).unwrap(), Some(1));
    assert_eq!(chosen(&with, None).unwrap(), Some(2));
    assert_eq!(chosen(&with, Some(1)).unwrap(), Some(1));
    assert_eq!(chosen(SMALL, None).unwrap(), None);
    for (text, node, remedy) in [
        (without.as_str(), None, "--node"),
        (&without, Some(3), "1, 2"),
        (SMALL, Some(1), "remove the option"),
    ] {
        let problem = chosen(text, node).unwrap_err();
        assert!(problem.remedy.contains(remedy), "{problem}");
    }
}
