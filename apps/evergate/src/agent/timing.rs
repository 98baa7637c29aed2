//! Timing of the cluster protocol: the setting `cluster.timing`, and the choice of `"auto"` on this machine.
//!
//! Nodes may differ. A lease then lasts as long as the shortest of all nodes' (`evergate_membership`), so no two nodes
//! ever serve one bucket. The nodes with the longer times suspect and replace later, and those with the shorter times
//! fence a late node early. That is a warning and no refusal: `timing` changes node by node, and replicas matter
//! meanwhile.

use evergate_base::Micros;
use evergate_config::model::ClusterTiming;
use evergate_membership::Timing;
use evergate_sys::MachineSigns;

/// Models and manufacturers that only virtual machines name in DMI. Manufacturers of real machines as well are not
/// here.
const VIRTUAL_MODELS: [&str; 12] = [
    "kvm",
    "virtual machine",
    "virtualbox",
    "vmware",
    "hvm domu",
    "google compute engine",
    "openstack",
    "standard pc (",
    "bhyve",
    "vserver",
    "droplet",
    "parallels",
];
const VIRTUAL_VENDORS: [&str; 7] = ["qemu", "vmware", "xen", "innotek", "parallels", "bochs", "amazon ec2"];
/// Part of the model of real machines whose manufacturer rents virtual ones too.
const REAL_MODEL: &str = "metal";

/// The times that a node runs with, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChosenTiming {
    /// Whether the machine schedules threads late.
    virtual_machine: bool,
    /// Reason of the choice, such as `auto: hypervisor found by CPUID`.
    pub(crate) reason: String,
}

impl ChosenTiming {
    /// The configured timing; with `Auto` that of the machine with these signs.
    pub(crate) fn of(configured: ClusterTiming, signs: &MachineSigns) -> ChosenTiming {
        let fixed = |virtual_machine| ChosenTiming { virtual_machine, reason: "cluster.timing".to_owned() };
        match configured {
            ClusterTiming::BareMetal => fixed(false),
            ClusterTiming::VirtualMachine => fixed(true),
            ClusterTiming::Auto => {
                let sign = sign_of_hypervisor(signs);
                let found = sign
                    .as_deref()
                    .map_or("no hypervisor found".to_owned(), |sign| format!("hypervisor found by {sign}"));
                ChosenTiming { virtual_machine: sign.is_some(), reason: format!("auto: {found}") }
            }
        }
    }

    pub(crate) fn is_bare_metal(&self) -> bool {
        !self.virtual_machine
    }

    /// As `cluster.timing` writes it.
    pub(crate) fn name(&self) -> &'static str {
        if self.virtual_machine { "virtual_machine" } else { "bare_metal" }
    }

    /// The remedy for a node that lost its membership because its threads ran late. `shorter`: the numbers of other
    /// nodes with the short times, which bind this one too.
    pub(crate) fn remedy(&self, shorter: &[u8]) -> String {
        let numbers: Vec<String> = shorter.iter().map(u8::to_string).collect();
        match (self.virtual_machine, numbers.is_empty()) {
            (false, _) => {
                "set cluster.timing = \"virtual_machine\" on all nodes, or reserve CPU time for this one"
                    .to_owned()
            }
            (true, false) => format!(
                "set cluster.timing = \"virtual_machine\" on node {} too: the shortest times of all nodes count",
                numbers.join(" and ")
            ),
            (true, true) => {
                "reserve CPU time for this machine: cluster.timing has no longer times".to_owned()
            }
        }
    }

    /// The spans of the protocol.
    pub(crate) fn spans(&self) -> Timing {
        if self.virtual_machine { Timing::VIRTUAL_MACHINE } else { Timing::BARE_METAL }
    }
}

/// The timing whose leases last for so long, as `cluster.timing` writes it; `None`: one of another version.
pub(crate) fn name_of_lease(lease: Micros) -> Option<&'static str> {
    let known = [(Timing::BARE_METAL, "bare_metal"), (Timing::VIRTUAL_MACHINE, "virtual_machine")];
    known.into_iter().find(|(timing, _)| timing.fence == lease).map(|(_, name)| name)
}

/// The first sign that the machine is virtual. The processor's bit is the surest; DMI is for processors that have none.
fn sign_of_hypervisor(signs: &MachineSigns) -> Option<String> {
    if signs.cpuid_bit {
        return Some("CPUID".to_owned());
    }
    if !signs.hypervisor_type.is_empty() {
        return Some(format!("/sys/hypervisor/type ({})", signs.hypervisor_type.escape_debug()));
    }
    if !signs.device_tree.is_empty() {
        return Some(format!("the device tree ({})", signs.device_tree.escape_debug()));
    }
    let (model, vendor) = (signs.product_name.to_lowercase(), signs.sys_vendor.to_lowercase());
    if model.contains(REAL_MODEL) {
        return None;
    }
    if VIRTUAL_MODELS.iter().any(|name| model.contains(name)) {
        return Some(format!("DMI product_name ({})", signs.product_name.escape_debug()));
    }
    let virtual_vendor = VIRTUAL_VENDORS.iter().any(|name| vendor.starts_with(name));
    virtual_vendor.then(|| format!("DMI sys_vendor ({})", signs.sys_vendor.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dmi(vendor: &str, model: &str) -> MachineSigns {
        MachineSigns {
            sys_vendor: vendor.to_owned(),
            product_name: model.to_owned(),
            ..MachineSigns::default()
        }
    }

    fn auto(signs: &MachineSigns) -> (&'static str, String) {
        let chosen = ChosenTiming::of(ClusterTiming::Auto, signs);
        (chosen.name(), chosen.reason)
    }

    #[test]
    fn auto_takes_the_long_times_on_any_sign_of_a_hypervisor() {
        let signs = [
            (MachineSigns { cpuid_bit: true, ..dmi("Amazon EC2", "m7i.metal") }, "CPUID"),
            (
                MachineSigns { hypervisor_type: "xen".to_owned(), ..MachineSigns::default() },
                "/sys/hypervisor/type (xen)",
            ),
            (
                MachineSigns { device_tree: "linux,kvm".to_owned(), ..MachineSigns::default() },
                "the device tree (linux,kvm)",
            ),
            (
                dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)"),
                "DMI product_name (Standard PC (Q35 + ICH9, 2009))",
            ),
            (dmi("Microsoft Corporation", "Virtual Machine"), "DMI product_name (Virtual Machine)"),
            (dmi("Amazon EC2", "m7g.large"), "DMI sys_vendor (Amazon EC2)"),
        ];
        for (signs, found) in signs {
            let reason = format!("auto: hypervisor found by {found}");
            assert_eq!(auto(&signs), ("virtual_machine", reason), "{signs:?}");
        }
    }

    #[test]
    fn auto_takes_the_short_times_on_real_machines() {
        let machines = [
            MachineSigns::default(),
            dmi("Dell Inc.", "PowerEdge R650"),
            dmi("Microsoft Corporation", "Surface Laptop 4"),
            dmi("Amazon EC2", "m7g.metal"),
            dmi("Supermicro", "SYS-1029P"),
        ];
        for signs in machines {
            assert_eq!(auto(&signs), ("bare_metal", "auto: no hypervisor found".to_owned()), "{signs:?}");
        }
    }

    #[test]
    fn configured_timing_wins_over_the_machine() {
        let virtual_one = MachineSigns { cpuid_bit: true, ..MachineSigns::default() };
        let chosen = ChosenTiming::of(ClusterTiming::BareMetal, &virtual_one);
        assert_eq!((chosen.name(), chosen.spans()), ("bare_metal", Timing::BARE_METAL));
        let chosen = ChosenTiming::of(ClusterTiming::VirtualMachine, &MachineSigns::default());
        assert_eq!((chosen.name(), chosen.spans()), ("virtual_machine", Timing::VIRTUAL_MACHINE));
        assert_eq!(chosen.reason, "cluster.timing");
    }

    #[test]
    fn remedy_names_the_key_that_helps() {
        let short = ChosenTiming::of(ClusterTiming::BareMetal, &MachineSigns::default());
        assert!(short.remedy(&[]).starts_with("set cluster.timing = \"virtual_machine\" on all nodes"));
        let long = ChosenTiming::of(ClusterTiming::VirtualMachine, &MachineSigns::default());
        assert!(long.remedy(&[2, 3]).contains("= \"virtual_machine\" on node 2 and 3 too"));
        assert!(long.remedy(&[]).starts_with("reserve CPU time"));
    }

    #[test]
    fn leases_of_other_nodes_name_their_timing() {
        assert_eq!(name_of_lease(Timing::BARE_METAL.fence), Some("bare_metal"));
        assert_eq!(name_of_lease(Timing::VIRTUAL_MACHINE.fence), Some("virtual_machine"));
        assert_eq!(name_of_lease(Micros(1)), None);
    }
}
