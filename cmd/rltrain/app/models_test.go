package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestModels(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	t.Setenv("RLTRAIN_CACHE", filepath.Join(f.tmp, "cache"))
	t.Setenv("HF_HOME", filepath.Join(f.tmp, "hf"))
	t.Setenv("HF_HUB_OFFLINE", "1")
	const snapshot = "hf/hub/models--some--repo/snapshots/1111111111111111111111111111111111111111"
	for _, dir := range []string{"cache/models/org/mine", snapshot} {
		must.Do(t, os.MkdirAll(filepath.Join(f.tmp, dir), 0o755))
	}
	f.write(t, "TMP/cache/models/org/mine/config.json", "{}")
	f.write(t, "TMP/cache/models/org/mine/README.md", "---\nlicense: mit\n---\n")
	f.write(t, "TMP/"+snapshot+"/config.json", "{}")
	out := f.must(t, "", "models")
	for _, want := range []string{
		"rltrain models pull smollm2", "Apache-2.0", "org/mine", "mit", f.expand("TMP/cache/models/org/mine"), "some/repo", "tiny",
	} {
		expect.True(t, strings.Contains(out, want), "no %q in\n%s", want, out)
	}
	expect.Same(t, f.expand("TMP/cache/models/org/mine\n"), f.must(t, "", "models", "pull", "org/mine"),
		"pull of a model in the cache prints")
	for args, want := range map[string]string{
		"models pull smollm2": "HF_HUB_OFFLINE", "models pull": "NAME", "models pull a b": "NAME", "models list": "list",
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code != 0 && strings.Contains(stderr, want), "%s: exit code %d, %q", args, code, stderr)
	}
}
