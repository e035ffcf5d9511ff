package app

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// packaged makes the native core one without a search path, as packages have it, on a machine without libtorch.
func packaged(t *testing.T) {
	t.Helper()
	core := must.Get(torch.Library())(t)
	file := must.Open(elf.Open(core))(t)
	_, dirs, err := libtorch.Dependencies(file, "$ORIGIN")
	must.Do(t, err)
	path := strings.Join(dirs, ":")
	data := strings.Replace(string(must.Get(os.ReadFile(core))(t)), path+"\x00", "$ORIGIN"+strings.Repeat("\x00", len(path)-len("$ORIGIN")+1), 1)
	own := must.File(t, filepath.Base(core), data)
	t.Setenv("RLTRAIN_LIB", own)
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	t.Setenv("LIBTORCH", "")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("PIP_FIND_LINKS", "")
	t.Setenv("PIP_NO_INDEX", "1")
}

// TestCommandsNeedLibtorch: without libtorch a command says how to get it, before anything is written; --yes downloads it.
func TestCommandsNeedLibtorch(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	packaged(t)
	for _, args := range []string{
		"train --task sum_digits --model tiny --num-steps 1 --output-dir TMP/runs", "--task sum_digits --model tiny --dry-run --num-steps 1",
		"generate --model tiny",
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code == 1 && strings.Contains(stderr, "rltrain setup") && strings.Contains(stderr, "--yes") && strings.Count(stderr, "\n") == 1, "%s: exit %d, %q", args, code, stderr)
		code, _, stderr = f.rltrain("", append(strings.Fields(args), "--yes")...)
		expect.True(t, code == 1 && strings.Contains(stderr, "no-index"), "%s --yes: exit %d, %q", args, code, stderr)
	}
	entries := must.Get(os.ReadDir(f.tmp))(t)
	expect.True(t, len(entries) == 0, "%v was written", entries)
	if code, out, stderr := f.rltrain("", "setup"); code != 1 || out != "" || !strings.Contains(stderr, "no-index") {
		t.Errorf("setup: exit %d, %q, %q", code, out, stderr)
	}
	if code, _, stderr := f.rltrain("", "setup", "--offline", f.tmp); code != 1 || !strings.Contains(stderr, "torch-") || !strings.Contains(stderr, "--export") {
		t.Errorf("setup --offline of an empty folder: exit %d, %q", code, stderr)
	}
}

// TestSetup: with libtorch there is nothing to download.
func TestSetup(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	t.Setenv("PIP_NO_INDEX", "1")
	if _, err := libtorch.Find(must.Get(hub.CacheDir())(t)); err != nil {
		t.Skip("libtorch is known to the core alone")
	}
	out := f.must(t, "", "setup")
	expect.True(t, strings.Contains(out, "libtorch "+libtorch.Version) && strings.Contains(out, "rltrain is ready"), "setup prints %q", out)
	for args, want := range map[string]string{
		"setup --device tpu": `"tpu" is not one of cpu, cuda`, "setup --offline a --export b": "exclude each other", "setup --offline TMP/none": "is not a folder",
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code == 2 && strings.Contains(stderr, want), "%s: exit %d, %q", args, code, stderr)
	}
}

// TestVersion: --json says what runs here.
func TestVersion(t *testing.T) {
	var f folders
	expect.Same(t, "rltrain version "+shared.Version+"\n", f.must(t, "", "version"), "must")
	var b build
	must.Do(t, json.Unmarshal([]byte(f.must(t, "", "version", "--json")), &b))
	expect.True(t, b.Version == shared.Version && b.ABI == torch.ABIVersion && b.Libtorch.Version == libtorch.Version && b.Libtorch.Folder != "" && b.Core != "", "got %+v", b)
	packaged(t)
	must.Do(t, json.Unmarshal([]byte(f.must(t, "", "version", "--json")), &b))
	expect.True(t, strings.Contains(b.Libtorch.Missing, "rltrain setup"), "without libtorch: %+v", b)
}

// TestManual: the page has every command and option, and troff understands it.
func TestManual(t *testing.T) {
	var f folders
	page := f.must(t, "", "man")
	expect.Contains(t, page, ".TH RLTRAIN 1", ".SS rltrain models pull NAME", ".B \\-\\-offline VALUE", ".B \\-\\-learning\\-rate X", "RLTRAIN_CACHE")
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skip(err)
	}
	command := exec.Command(man, "--warnings=all", "-l", "-")
	command.Stdin, command.Env = strings.NewReader(page), append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80")
	var faults strings.Builder
	command.Stderr = &faults
	out, err := command.Output()
	expect.True(t, err == nil && faults.Len() <= 0 && strings.Contains(string(out), "--learning-rate X"), "%v: %s", err, faults.String())
}

// TestDoctorFirst: doctor works without libtorch and says how to get it.
func TestDoctorFirst(t *testing.T) {
	var f folders
	out := f.must(t, "", "doctor")
	expect.Contains(t, out, "System\n", "glibc 2.", "libtorch          "+libtorch.Version, "GB free", "Operators\n", "Sandbox for programs\n")
	packaged(t)
	code, out, stderr := f.rltrain("", "doctor")
	if code != 1 || !strings.Contains(out, "FAULT: libtorch "+libtorch.Version+" not found") || !strings.Contains(out, "fix: rltrain setup\n") ||
		!strings.Contains(out, "Sandbox for programs\n") || strings.Contains(out, "Operators\n") || !strings.Contains(stderr, "doctor says what to do") {
		t.Errorf("exit %d, %q\n%s", code, stderr, out)
	}
}
