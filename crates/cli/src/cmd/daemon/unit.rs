//! What a service manager is told: a systemd unit, a launchd property list. Text in, text out.

use std::path::Path;

/// What the unit is called.
pub(super) const UNIT: &str = "tenure-daemon.service";
/// What launchd calls it.
pub(super) const LABEL: &str = "dev.tenure.daemon";

/// What is to be run, and with which variables.
#[derive(Clone, Debug)]
pub(super) struct Service<'a> {
    pub(super) program: &'a Path,
    pub(super) variables: &'a [(String, String)],
}

/// A unit for the user's systemd.
pub(super) fn systemd(service: &Service<'_>) -> String {
    let mut environment = String::new();
    for (name, value) in service.variables {
        environment += &format!("Environment={}\n", quoted(&format!("{name}={value}")));
    }
    // A command line is also expanded.
    let program = quoted(&service.program.display().to_string()).replace('$', "$$");
    format!(
        "[Unit]
Description=Tenure daemon: a local outbox that keeps its word

[Service]
Type=exec
ExecStart={program} daemon up --foreground
{environment}Restart=on-failure
RestartSec=5
# Wrong configuration, or a broker that will not have us: trying again does not help.
RestartPreventExitStatus=2 4
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"
    )
}

/// One word of a unit, whatever is in it.
fn quoted(text: &str) -> String {
    let mut word = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => word.extend(['\\', c]),
            '%' => word += "%%",
            '\n' => word += "\\n",
            c => word.push(c),
        }
    }
    word + "\""
}

/// A property list for the user's launchd.
pub(super) fn launchd(service: &Service<'_>) -> String {
    let mut environment = String::new();
    for (name, value) in service.variables {
        environment += &format!("    <key>{}</key>\n    <string>{}</string>\n", xml(name), xml(value));
    }
    let program = xml(&service.program.display().to_string());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
    <string>{program}</string>
    <string>daemon</string>
    <string>up</string>
    <string>--foreground</string>
  </array>
  <key>EnvironmentVariables</key>
  <dict>
{environment}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>10</integer>
  <key>ProcessType</key>
  <string>Background</string>
  <key>Umask</key>
  <integer>63</integer>
</dict>
</plist>
"
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd() -> (std::path::PathBuf, Vec<(String, String)>) {
        let variables = vec![("TENURE_HOME".to_owned(), "/a b/100%/\"q\"\\&<x>".to_owned())];
        ("/opt/my $tools/tenure".into(), variables)
    }

    #[test]
    fn a_unit_says_what_to_run_whatever_it_is_called() {
        let (program, variables) = odd();
        let unit = systemd(&Service { program: &program, variables: &variables });
        assert!(unit.contains("ExecStart=\"/opt/my $$tools/tenure\" daemon up --foreground\n"), "{unit}");
        assert!(unit.contains("Environment=\"TENURE_HOME=/a b/100%%/\\\"q\\\"\\\\&<x>\"\n"), "{unit}");
    }

    #[test]
    fn a_property_list_is_xml_whatever_is_in_it() {
        let (program, variables) = odd();
        let list = launchd(&Service { program: &program, variables: &variables });
        assert!(list.contains("<string>/a b/100%/\"q\"\\&amp;&lt;x&gt;</string>"), "{list}");
        assert!(
            list.contains("<string>/opt/my $tools/tenure</string>\n    <string>daemon</string>"),
            "{list}"
        );
        for tag in ["dict", "array", "plist", "key", "string"] {
            let count = |what: String| list.matches(&what).count();
            assert_eq!(
                count(format!("<{tag}>")) + count(format!("<{tag} ")),
                count(format!("</{tag}>")),
                "{tag}"
            );
        }
    }
}
