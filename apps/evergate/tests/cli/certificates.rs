//! Problems that `check` finds in certificates, keys and trust anchors.

use crate::{BASE, Folder, evergate};

/// Writes a pair for old.example that is valid for this span, in seconds since 1970.
fn issue(folder: &Folder, begin_s: u64, end_s: u64) {
    let at = |seconds| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
    let mut params = rcgen::CertificateParams::new(vec!["old.example".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (at(begin_s), at(end_s));
    let key = rcgen::KeyPair::generate().unwrap();
    folder.write("site.pem", &params.self_signed(&key).unwrap().pem());
    let path = folder.write("site.key", &key.serialize_pem());
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// Writes a pair whose key belongs to another certificate.
fn issue_mismatched(folder: &Folder) {
    issue(folder, 86_400, u64::from(u32::MAX));
    let first = std::fs::read_to_string(folder.0.join("site.pem")).unwrap();
    issue(folder, 86_400, u64::from(u32::MAX));
    folder.write("site.pem", &first);
}

const PAIR: &str = "chain = \"site.pem\"\nkey = \"site.key\"";

#[test]
fn check_warns_of_invalid_and_soon_expiring_certificates() {
    const DAY_S: u64 = 86_400;
    let folder = Folder::new("validity");
    let path = folder.write("evergate.toml", &BASE.replace("self_signed = [\"localhost\"]", PAIR));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (begin, end, expected) in [
        (DAY_S, 2 * DAY_S, Some("has expired, on 1970-01-03T00:00:00Z")),
        (now + DAY_S, now + 90 * DAY_S, Some("is not valid yet")),
        (DAY_S, now + 13 * DAY_S, Some("expires soon")),
        (DAY_S, now + 15 * DAY_S, None),
    ] {
        issue(&folder, begin, end);
        let output = evergate(&["check", &path]);
        assert_eq!(output.code, Some(0), "{}", output.out);
        let place = format!("warning: {path}:19:9: certificates[0].chain = \"site.pem\"");
        assert_eq!(output.out.contains(&place), expected.is_some(), "{}", output.out);
        assert!(output.out.contains(expected.unwrap_or("with 3 warnings")), "{}", output.out);
    }
}

#[test]
fn check_names_a_key_of_another_certificate() {
    let folder = Folder::new("pair");
    let path = folder.write("evergate.toml", &BASE.replace("self_signed = [\"localhost\"]", PAIR));
    issue_mismatched(&folder);
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(2));
    for part in [
        "evergate.toml:20:7: certificates[0].key = \"site.key\"",
        "problem:     private key does not belong to certificate",
        "remedy:      check that both files are from one issuance",
    ] {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
}

#[test]
fn check_names_the_certificate_that_must_come_first() {
    let folder = Folder::new("order");
    let path = folder.write("evergate.toml", &BASE.replace("self_signed = [\"localhost\"]", PAIR));
    issue(&folder, 86_400, u64::from(u32::MAX));
    let own = std::fs::read_to_string(folder.0.join("site.pem")).unwrap();
    let above = issuer("above", rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    folder.write("site.pem", &(above + &own));
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(2));
    for part in [
        "evergate.toml:19:9: certificates[0].chain = \"site.pem\"",
        "problem:     certificate chain: CN=above stands first, and the private key is that of number 2, CN=",
        "remedy:      begin the file with CN=",
    ] {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
}

#[test]
fn check_accepts_a_byte_order_mark_unless_it_hides_a_block() {
    let folder = Folder::new("marked");
    let path = folder.write("evergate.toml", &BASE.replace("self_signed = [\"localhost\"]", PAIR));
    issue(&folder, 86_400, u64::from(u32::MAX));
    for name in ["site.pem", "site.key"] {
        let content = std::fs::read_to_string(folder.0.join(name)).unwrap();
        folder.write(name, &format!("\u{feff}{content}"));
    }
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(0), "{}", output.out);
    let chain = std::fs::read_to_string(folder.0.join("site.pem")).unwrap();
    folder.write("site.pem", &(chain.clone() + &chain));
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(2), "{}", output.out);
    assert!(output.out.contains("is broken: a byte order mark (U+FEFF)"), "{}", output.out);
}

/// Listener whose pool uses TLS with these settings.
fn pool_tls(settings: &str) -> String {
    format!(
        "[admin]\nsocket = \"off\"\n[[listeners]]\nname = \"in\"\naddress = \":8080\"\n\
         protocol = \"http\"\npool = \"p\"\n\
         [[pools]]\nname = \"p\"\n[[pools.servers]]\naddress = \"127.0.0.1:8443\"\n[pools.tls]\n\
         server_name = \"x\"\n{settings}"
    )
}

const SHOWN: &str = "client_chain = \"site.pem\"\nclient_key = \"site.key\"\nca = \"other.pem\"\n";

/// Writes a currently valid trust anchor.
fn authority(folder: &Folder, name: &str) {
    folder.write(name, &evergate_crypto::self_signed(&["ca.example".to_owned()]).unwrap().0);
}

#[test]
fn check_names_a_mismatched_key_of_a_client_certificate() {
    let folder = Folder::new("shown-pair");
    let path = folder.write("evergate.toml", &pool_tls(SHOWN));
    authority(&folder, "other.pem");
    issue_mismatched(&folder);
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(2));
    for part in [
        "evergate.toml:15:14: pools[0].tls.client_key = \"site.key\"",
        "problem:     private key does not belong to certificate",
        "remedy:      check that both files are from one issuance",
    ] {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
    assert_eq!(output.out.matches("problem: ").count(), 1, "{}", output.out);
}

#[test]
fn check_warns_of_invalid_certificates_towards_servers() {
    let folder = Folder::new("shown-validity");
    let path = folder.write("evergate.toml", &pool_tls(SHOWN));
    authority(&folder, "other.pem");
    for (end, is_reported) in [(2 * 86_400, true), (u64::from(u32::MAX), false)] {
        issue(&folder, 86_400, end);
        let output = evergate(&["check", &path]);
        assert_eq!(output.code, Some(0), "{}", output.out);
        let reported = "14:16: pools[0].tls.client_chain = \"site.pem\"\n  \
                        problem:     the certificate has expired, on 1970-01-03";
        assert_eq!(output.out.contains(reported), is_reported, "{}", output.out);
        assert_eq!(output.out.contains("consequence: servers refuse it"), is_reported, "{}", output.out);
    }
}

/// Listener that requests client certificates.
fn asking() -> String {
    BASE.replace("protocol = \"https\"\n", "protocol = \"https\"\ntls = \"t\"\n")
        + "[tls.t]\nclient_certificates = \"required\"\nclient_ca = \"ca.pem\"\n"
}

/// Certificate in PEM whose key may, or may not, issue certificates.
fn issuer(name: &str, is_ca: rcgen::IsCa) -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = is_ca;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

/// Configuration that requests client certificates and has a rule for one subject.
pub(crate) fn asking_for_alice(folder: &Folder) -> String {
    folder.write("ca.pem", &issuer("authority", rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)));
    let rule = "[[rules]]\nname = \"alice\"\nwhen = 'tls.client_subject == \"CN=alice\"'\ndeny = 418\n";
    folder.write("evergate.toml", &(asking() + rule))
}

#[test]
fn check_names_trust_anchors_that_accept_no_client() {
    let folder = Folder::new("no-authority");
    let path = folder.write("evergate.toml", &asking());
    let authority = issuer("authority", rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    let (one, two) = (issuer("one", rcgen::IsCa::NoCa), issuer("two", rcgen::IsCa::ExplicitNoCa));
    for (content, code, reported) in [
        (authority.clone(), 0, None),
        (authority.clone() + &one, 0, Some("problem:     \"CN=one\" in ")),
        (one.clone() + &authority + &two, 0, Some("problem:     \"CN=one\" and 1 more in ")),
        (one + &two, 2, Some("problem:     no certificate in ")),
    ] {
        folder.write("ca.pem", &content);
        let output = evergate(&["check", &path]);
        assert_eq!(output.code, Some(code), "{}", output.out);
        assert!(output.out.contains(reported.unwrap_or("")), "{}", output.out);
        assert_eq!(
            output.out.contains(": tls.t.client_ca = \"ca.pem\""),
            reported.is_some(),
            "{}",
            output.out
        );
    }
}

#[test]
fn check_warns_of_a_list_of_authorities_that_is_too_long() {
    let folder = Folder::new("many-authorities");
    let path = folder.write("evergate.toml", &asking());
    let ca = || rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let names = (0..300).map(|index| issuer(&format!("{index:0>60}"), ca()));
    let all: Vec<String> = names.collect();
    for (count, is_reported) in [(100, false), (300, true)] {
        folder.write("ca.pem", &all[..count].concat());
        let output = evergate(&["check", &path]);
        assert_eq!(output.code, Some(0), "{}", output.out);
        let reported = "bytes, more than the 16128 that clients receive";
        assert_eq!(output.out.contains(reported), is_reported, "{}", output.out);
    }
}

#[test]
fn check_warns_of_authorities_when_none_of_a_file_is_valid() {
    let folder = Folder::new("authorities");
    let path = folder.write("evergate.toml", &pool_tls("ca = \"site.pem\"\n"));
    issue(&folder, 86_400, 2 * 86_400);
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(0), "{}", output.out);
    let reported = "evergate.toml:14:6: pools[0].tls.ca = \"site.pem\"\n  \
                    problem:     the authority's certificate has expired";
    assert!(output.out.contains(reported), "{}", output.out);
    authority(&folder, "new.pem");
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    folder.write("site.pem", &(read("site.pem") + &read("new.pem")));
    let output = evergate(&["check", &path]);
    assert!(output.code == Some(0) && !output.out.contains("expired"), "{}", output.out);
}
