//! Databases that a daemon does not start over, and what it advises.

use crate::{
    support::{
        Done, Shell, eventually_blocking, note_skipped,
        postgres::{Database, Pooler, Server},
        tls, when,
    },
    there,
};

/// Starts a daemon that ends at once.
fn refused(shell: &Shell, url: &str) -> Done {
    let mut serve = shell.command(&["serve", "--listen", "127.0.0.1:0", "--data", "data"]);
    let done: Done = serve.env("MOONSWARM_STORE", url).output().unwrap().into();
    assert_ne!(done.code, 0, "{done:?}");
    done
}

fn doctor(shell: &Shell, url: &str) -> String {
    let mut doctor = shell.command(&["doctor", "--data", "data"]);
    let done: Done = doctor.env("MOONSWARM_STORE", url).output().unwrap().into();
    done.stdout
}

#[test]
fn a_database_that_cannot_be_used_is_refused_with_a_remedy() {
    let Some(database) = there(Database::fresh()) else { return };
    let (shell, url) = (Shell::new(), database.url());
    let name = url.rsplit('/').next().unwrap();
    let server = Server::shared().unwrap();
    let alter = |how: &str| server.sql("postgres", &format!("ALTER DATABASE {name} {how}"));
    alter("SET default_transaction_read_only = on");
    let told = refused(&shell, &url).stderr;
    assert!(told.contains("read-only") && told.contains("name the primary"), "{told}");
    alter("RESET default_transaction_read_only");

    database.sql("CREATE SCHEMA moonswarm; CREATE TABLE moonswarm.theirs (n int)");
    let told = refused(&shell, &url).stderr;
    assert!(told.contains("belongs to something else; name another database"), "{told}");
    assert!(doctor(&shell, &url).contains("belongs to something else"));
    database.sql("DROP SCHEMA moonswarm CASCADE");

    let nobody = refused(&shell, "postgres://me@127.0.0.1:1/db").stderr;
    assert!(nobody.contains("start the database, or check its address"), "{nobody}");
    assert!(doctor(&shell, "postgres://me@127.0.0.1:1/db").contains("fail  database"));
    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = web.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write as _;
        if let Ok((mut it, _)) = web.accept() {
            let _ = it.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let told = refused(&shell, &format!("postgres://me@{at}/db")).stderr;
    assert!(told.contains("next:"), "{told}");
    answers.join().unwrap();
}

#[test]
fn a_pooler_in_transaction_mode_is_refused() {
    let Some(server) = there(Server::own()) else { return };
    let Some(pooler) = Pooler::before(&server) else {
        return note_skipped("a pooler before PostgreSQL", "there is no pgbouncer");
    };
    let (shell, name) = (Shell::new(), server.create_database());
    eventually_blocking("the pooler listens", || when(pooler.listens(), "it does not"));
    let told = refused(&shell, &pooler.url(&name)).stderr;
    assert!(told.contains("pooler") && told.contains("name the server itself"), "{told}");
    assert_eq!(server.sql(&name, "SELECT to_regnamespace('moonswarm') IS NULL").trim(), "t");
}

#[test]
fn the_certificate_of_the_server_is_checked() {
    let (certificate, key) = (tls::file("first.pem"), tls::file("first.key"));
    let Some(server) = there(Server::with_tls(&certificate, &key)) else { return };
    let (shell, name) = (Shell::new(), server.create_database());
    let trusted = format!("sslmode=require&sslrootcert={}", tls::file("ca.pem").display());
    let url =
        |host: &str, query: &str| server.tcp_url(&name).replace("127.0.0.1", host) + "?" + query;
    let unknown = refused(&shell, &url("127.0.0.1", "sslmode=require")).stderr;
    assert!(unknown.to_lowercase().contains("certificate"), "{unknown}");
    let other = refused(&shell, &url("127.0.0.2", &trusted)).stderr;
    assert!(other.to_lowercase().contains("certificate"), "{other}");
    let daemon = crate::start(&shell.path("data"), &url("127.0.0.1", &trusted));
    let encrypted = "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity
                     USING (pid) WHERE application_name LIKE 'moonswarm/%'";
    assert_eq!(server.sql(&name, encrypted).trim(), "t");
    assert!(doctor(&shell, &url("127.0.0.1", &trusted)).contains("reached over TLS"));
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn the_doctor_sees_the_database() {
    let Some(server) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), server.create_database());
    let daemon = crate::start(&shell.path("data"), &server.url(&name));
    let told = doctor(&shell, &server.url(&name));
    let lines: Vec<_> = told.lines().filter(|line| line.contains("database: ")).collect();
    assert!(lines.len() >= 9 && lines.iter().all(|line| line.starts_with("ok")), "{told}");
    assert!(told.contains(&format!("(pid {})", daemon.pid())), "{told}");
    server.sql("postgres", "ALTER SYSTEM SET autovacuum = off");
    server.sql("postgres", "ALTER SYSTEM SET full_page_writes = off");
    server.sql("postgres", "SELECT pg_reload_conf()");
    eventually_blocking("the server reads its settings", || {
        let told = doctor(&shell, &server.url(&name));
        let warned = ["switch autovacuum on", "set fsync and full_page_writes on"];
        when(warned.iter().all(|it| told.contains(it)), told)
    });
    drop(daemon);
}
