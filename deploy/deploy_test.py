# SPDX-License-Identifier: Apache-2.0
"""Units and manifests parse, and give daemons only options that they have."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
from typing import Any

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"], "talweg")
TOOL = RUNFILES / "clients/cli/talweg"
DEPLOY = RUNFILES / "deploy"
TIMEOUT_S = 60

HAS_YAML = importlib.util.find_spec("yaml") is not None
yaml: Any = importlib.import_module("yaml") if HAS_YAML else None


def options_of(command: str) -> set[str]:
    text = subprocess.run(
        [TOOL, command, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout
    return set(re.findall(r"^  --([a-z_-]+)", text, re.MULTILINE))


def manifests() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        found += [(path.name, each) for each in yaml.safe_load_all(path.read_text())]
    return found


class SystemdTest(unittest.TestCase):
    def units(self) -> list[pathlib.Path]:
        found = sorted((DEPLOY / "systemd").glob("*.service"))
        self.assertEqual(len(found), 3)
        return found

    def test_units_are_locked_down(self) -> None:
        for unit in self.units():
            lines = unit.read_text().splitlines()
            for setting in (
                "NoNewPrivileges=yes",
                "ProtectSystem=strict",
                "LimitMEMLOCK=infinity",
                "User=talweg",
            ):
                self.assertIn(setting, lines, unit.name)

    def test_units_start_daemons_with_a_configuration_that_is_here(self) -> None:
        for unit in self.units():
            command = re.search(r"^ExecStart=/usr/bin/talweg-(\w+) (.*)$", unit.read_text(), re.M)
            assert command is not None, unit.name
            self.assertEqual(set(re.findall(r"--(\w+)", command[2])), {"config"})
            name = pathlib.Path(command[2].split("=")[1]).name.replace("-%i", "")
            self.assertTrue((DEPLOY / "config" / name).exists(), name)

    def test_systemd_accepts_the_units(self) -> None:
        if shutil.which("systemd-analyze") is None:
            print("SKIPPED: no systemd-analyze")
            return
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            paths = []
            for unit in self.units():
                # What is installed on a real machine is not here.
                text = re.sub(
                    "^ExecStart=/usr/bin/talweg-",
                    "ExecStart=/bin/echo ",
                    unit.read_text(),
                    flags=re.M,
                )
                instance = unit.name.replace("@.", "@resnet.")
                (directory / instance).write_text(text)
                paths.append(str(directory / instance))
            done = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", *paths],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            complaints = [line for line in done.stderr.splitlines() if "talweg-" in line]
            self.assertEqual(complaints, [])


@unittest.skipIf(not HAS_YAML, "no PyYAML")
class KubernetesTest(unittest.TestCase):
    def test_manifests_parse_and_live_in_the_namespace(self) -> None:
        kinds = [each["kind"] for _, each in manifests()]
        for kind in (
            "Namespace",
            "Deployment",
            "Service",
            "PersistentVolumeClaim",
            "StatefulSet",
            "DaemonSet",
            "Job",
        ):
            self.assertIn(kind, kinds)
        for name, each in manifests():
            if each["kind"] not in ("Namespace", "Kustomization"):
                self.assertEqual(each["metadata"]["namespace"], "talweg", name)

    def test_containers_get_options_that_exist(self) -> None:
        checked = set()
        for name, each in manifests():
            if "template" not in each.get("spec", {}):
                continue
            for container in each["spec"]["template"]["spec"]["containers"]:
                line = " ".join([*container["command"], *container["args"]]).split(" -- ")[0]
                command = re.search(r"talweg[ -](scheduler|aggregator|agent|run)\b", line)
                assert command is not None, line
                options = set(re.findall(r"(?<!\S)--([a-z_-]+)", line))
                self.assertTrue(options, name)
                self.assertLessEqual(options, options_of(command[1]), name)
                checked.add(command[1])
        self.assertEqual(checked, {"scheduler", "aggregator", "agent", "run"})

    def test_probes_ask_a_port_that_the_daemon_listens_on(self) -> None:
        probed = 0
        for name, each in manifests():
            if "template" not in each.get("spec", {}):
                continue
            for container in each["spec"]["template"]["spec"]["containers"]:
                line = " ".join(container["args"])
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if probe not in container:
                        continue
                    self.assertRegex(
                        line, rf"listen=\S+:{container[probe]['tcpSocket']['port']}\b", name
                    )
                    probed += 1
        self.assertEqual(probed, 9)

    def test_the_kustomization_names_files_that_are_here(self) -> None:
        text = (DEPLOY / "kubernetes/kustomization.yaml").read_text()
        for resource in re.findall(r"- (\S+\.yaml)", text):
            self.assertTrue((DEPLOY / "kubernetes" / resource).exists(), resource)


if __name__ == "__main__":
    if not HAS_YAML:
        print("SKIPPED: no PyYAML, manifests are not checked; bazel/prepare --for=test installs it")
    unittest.main()
