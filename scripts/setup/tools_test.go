package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestToolsNameACompilerThatIsTooOld puts a g++ of each version before the real one on the path.
func TestToolsNameACompilerThatIsTooOld(t *testing.T) {
	for version, want := range map[string]string{
		"11.4.0": "g++ is version 11.4.0, older than 12",
		"12.1.0": "",
	} {
		folder := t.TempDir()
		script := "#!/bin/sh\necho " + version + "\n"
		must.Do(t, os.WriteFile(filepath.Join(folder, "g++"), []byte(script), 0o755))
		cmd := exec.Command("./tools.sh")
		cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // other tools may be missing here
		found := ""
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "g++ is") {
				found = line
			}
		}
		expect.True(t, (want != "" || found == "") && strings.Contains(found, want), "g++ %s: tools.sh says %q, want %q", version, found, want)
	}
}
