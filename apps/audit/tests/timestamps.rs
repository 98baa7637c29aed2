//! Time stamps of a real authority (`openssl ts`): verified at their own time, also when its certificate has ended.

#![cfg(feature = "tsa")]

mod support;

use evergate_audit::verify::VerifyArgs;
use evergate_evidence::mark::{Mark, MarkKind};
use evergate_evidence::merkle::sha256;
use evergate_evidence::record::Body;
use evergate_evidence::verify::{FindingKind, Report};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::records::{Shape, fill};
use support::{Folder, StoreWriter};

const CONFIGURATION: &str = "[ ca ]\ndefault_ca = c\n[ c ]\ndatabase = index.txt\nrand_serial = yes\n\
    new_certs_dir = .\ndefault_md = sha256\npolicy = p\nx509_extensions = tsa\nunique_subject = no\n\
    [ p ]\ncommonName = supplied\n[ req ]\ndistinguished_name = dn\nprompt = no\n[ dn ]\nCN = Test TSA\n\
    [ root ]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign\n\
    [ tsa ]\nbasicConstraints = CA:FALSE\nkeyUsage = critical,digitalSignature\n\
    extendedKeyUsage = critical,timeStamping\n\
    [ tsa_config ]\nserial = tsa.serial\nsigner_digest = sha256\ndefault_policy = 1.2.3.4.1\ndigests = sha256\n";

/// Validity of the authority's certificate from now on.
const VALID_S: u64 = 12;

fn try_openssl(folder: &Path, arguments: &str) -> Output {
    Command::new("openssl").args(arguments.split_whitespace()).current_dir(folder).output().unwrap()
}

fn openssl(folder: &Path, arguments: &str) {
    let output = try_openssl(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a root and an authority whose certificate ends soon: `authority.pem`.
fn make_authority(folder: &Path) {
    std::fs::write(folder.join("a.cnf"), CONFIGURATION).unwrap();
    std::fs::write(folder.join("index.txt"), "").unwrap();
    std::fs::write(folder.join("tsa.serial"), "01\n").unwrap();
    let root = "req -x509 -newkey rsa:2048 -nodes -config a.cnf -extensions root -subj /CN=Root -days 3650";
    openssl(folder, &format!("{root} -keyout root.key -out root.pem"));
    openssl(
        folder,
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config a.cnf -keyout tsa.key -out tsa.csr",
    );
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + VALID_S;
    let end: String =
        evergate_base::rfc3339(end as i64).chars().filter(char::is_ascii_alphanumeric).collect();
    let end = end.replace('T', "");
    let sign = "ca -batch -config a.cnf -cert root.pem -keyfile root.key -in tsa.csr -out tsa.pem -notext";
    openssl(folder, &format!("{sign} -startdate 20200101000000Z -enddate {end}"));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    std::fs::write(folder.join("authority.pem"), read("tsa.pem") + &read("root.pem")).unwrap();
}

/// Stamps the newest checkpoint of the log.
fn stamp(folder: &Path, writer: &StoreWriter) -> u64 {
    let checkpoint = writer.log.checkpoint();
    let size = checkpoint.checkpoint().size;
    let stamps = writer.store.root().join("tsa");
    std::fs::create_dir_all(&stamps).unwrap();
    std::fs::write(stamps.join(format!("{size}.checkpoint")), checkpoint.to_bytes()).unwrap();
    openssl(folder, &format!("ts -query -sha256 -cert -data store/tsa/{size}.checkpoint -out query.tsq"));
    let reply =
        "ts -reply -config a.cnf -section tsa_config -queryfile query.tsq -signer tsa.pem -inkey tsa.key";
    openssl(folder, &format!("{reply} -out store/tsa/{size}.tsr"));
    size
}

fn args(folder: &Path) -> VerifyArgs {
    VerifyArgs {
        folder: folder.join("store"),
        trust: folder.join("trust.json"),
        expect_checkpoint: None,
        timestamps: None,
        memory: 64,
        threads: 1,
        json: false,
    }
}

fn verify(folder: &Path) -> Report {
    evergate_audit::verify::report(&args(folder)).unwrap_or_else(|failure| panic!("{}", failure.message))
}

fn write_trust(folder: &Path, trust: &str, authorities: &str) {
    let text = trust.trim_end().replace("]}", &format!("],\"tsa_certificates\":[{authorities}]}}"));
    std::fs::write(folder.join("trust.json"), text).unwrap();
}

#[test]
fn time_stamps_are_verified_at_their_own_time() {
    let folder = Folder::new("timestamps");
    let folder = &folder.0;
    make_authority(folder);
    let begin_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let mut writer = StoreWriter::new(&folder.join("store"), 2);
    let shape = Shape { segments: 1, records: 20, ..Shape::default() };
    writer.push(Body::Mark(Mark { what: MarkKind::Counters, json: "{}".into() }));
    writer.end_batch();
    writer.sign();
    let first = stamp(folder, &writer);
    fill(&mut writer, 2, shape);
    writer.end_batch();
    writer.sign();
    let last = stamp(folder, &writer);
    assert!(last > first);
    let built = writer.finish();
    write_trust(folder, &built.trust, "\"authority.pem\"");

    // OpenSSL refuses the token when the certificate has ended.
    let wait = Instant::now();
    let check =
        format!("ts -verify -data store/tsa/{last}.checkpoint -in store/tsa/{last}.tsr -CAfile root.pem");
    while try_openssl(folder, &check).status.success() {
        assert!(wait.elapsed() < Duration::from_secs(5 * VALID_S), "the certificate does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    let report = verify(folder);
    assert_eq!(report.findings, []);
    let checked = &report.checked;
    assert_eq!((checked.timestamps, checked.timestamps_unverified), (2, 0), "{:?}", report.warnings);
    assert_eq!(checked.stamped_size, last);
    assert!(checked.stamped_ms + 1000 >= begin_ms && checked.stamped_ms < begin_ms + 1000 * 5 * VALID_S);

    // Without authorities the report states that the tokens were not checked.
    write_trust(folder, &built.trust, "");
    let report = verify(folder);
    assert_eq!((report.checked.timestamps, report.checked.timestamps_unverified), (0, 2));
    assert!(report.ok && report.warnings.iter().any(|warning| warning.kind == FindingKind::Unchecked));

    // Another authority did not make them.
    let other =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config a.cnf -extensions tsa -days 9";
    openssl(folder, &format!("{other} -keyout other.key -out other.pem"));
    write_trust(folder, &built.trust, "\"other.pem\"");
    let paths: Vec<String> = verify(folder).findings.into_iter().map(|finding| finding.path).collect();
    assert_eq!(paths, [format!("tsa/{first}.tsr"), format!("tsa/{last}.tsr")]);

    // A changed byte of the checkpoint is found; of a token, a byte of what is signed or of the signature at its end.
    // The rest, such as certificates beside the signature, is no evidence.
    write_trust(folder, &built.trust, "\"authority.pem\"");
    let (token, checkpoint) = (format!("tsa/{first}.tsr"), format!("tsa/{first}.checkpoint"));
    let read = |name: &str| std::fs::read(folder.join("store").join(name)).unwrap();
    let (good_token, good_checkpoint) = (read(&token), read(&checkpoint));
    let imprint = sha256(&good_checkpoint);
    let signed = good_token.windows(32).position(|bytes| bytes == imprint).expect("imprint");
    let in_token = [signed, signed + 31, signed + 40, good_token.len() - 1, good_token.len() - 30];
    let cases = in_token.map(|at| (&token, &good_token, at)).into_iter();
    let in_checkpoint = (0..good_checkpoint.len()).step_by(5);
    for (name, good, at) in cases.chain(in_checkpoint.map(|at| (&checkpoint, &good_checkpoint, at))) {
        let mut changed = good.clone();
        changed[at] ^= 0x11;
        std::fs::write(folder.join("store").join(name), changed).unwrap();
        let report = verify(folder);
        let is_found =
            report.findings.iter().any(|finding| finding.path.starts_with(&format!("tsa/{first}.")));
        assert!(is_found, "byte {at} of {name}: {:?}", report.findings);
        std::fs::write(folder.join("store").join(name), good).unwrap();
    }

    // No damage of a response ends the verifier.
    for at in (0..good_token.len()).step_by(3) {
        let mut changed = good_token.clone();
        changed[at] = !changed[at];
        for bytes in [&changed[..], &good_token[..at]] {
            std::fs::write(folder.join("store").join(&token), bytes).unwrap();
            verify(folder);
        }
    }
    std::fs::write(folder.join("store").join(&token), &good_token).unwrap();

    // A stamped checkpoint of another history is a fork.
    std::fs::remove_dir_all(folder.join("store/tsa")).unwrap();
    let mut other = StoreWriter::new(&folder.join("fork"), 2);
    other.log.fork();
    fill(&mut other, 2, shape);
    other.end_batch();
    let checkpoint = other.log.checkpoint();
    let size = checkpoint.checkpoint().size;
    std::fs::create_dir_all(folder.join("store/tsa")).unwrap();
    std::fs::write(folder.join(format!("store/tsa/{size}.checkpoint")), checkpoint.to_bytes()).unwrap();
    let kinds: Vec<FindingKind> = verify(folder).findings.into_iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::Fork), "{kinds:?}");
}

#[test]
fn missing_certificate_of_an_authority_is_refused() {
    let folder = Folder::new("no-authority");
    let writer = StoreWriter::new(&folder.0.join("store"), 2);
    let built = writer.finish();
    write_trust(&folder.0, &built.trust, "\"none.pem\"");
    let output = Command::new(env!("CARGO_BIN_EXE_evergate-audit"))
        .args(["verify", "--trust"])
        .args([folder.0.join("trust.json"), built.root.clone()])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("none.pem") && error.contains("tsa_certificates"), "{error}");
    // Of a kind of key that this version does not verify.
    make_authority(&folder.0);
    write_trust(&folder.0, &built.trust, "\"root.pem\"");
    let failure = evergate_audit::verify::report(&args(&folder.0)).expect_err("refused");
    assert!(failure.message.contains("no ECDSA key"), "{}", failure.message);
}
