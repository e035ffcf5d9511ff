package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	yamlBlock  = regexp.MustCompile("(?ms)^```yaml\n(# rltrain --config FILE\n.*?)^```")
)

// documented returns the arguments of every rltrain command in a page's shell blocks. A real shell without programs
// expands them, so quotes, variables and continued lines mean what they mean to a reader.
func documented(t *testing.T, page string) [][]string {
	t.Helper()
	text := must.Get(os.ReadFile(page))(t)
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	script := `rltrain() { printf '%s\0' "$@" >> "$CALLS"; printf '\n\0' >> "$CALLS"; }` + "\n"
	for _, block := range shellBlock.FindAllSubmatch(text, -1) {
		script += strings.ReplaceAll(string(block[1]), "./bin/rltrain", "rltrain") + "\nwait\n"
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	shell := exec.Command(bash, "-c", script)
	shell.Dir, shell.Env = dir, []string{"PATH=" + filepath.Join(dir, "none"), "CALLS=" + calls, "HOME=" + dir, "KEY=key"}
	shell.Run() // programs missing here are not the page's fault
	recorded, err := os.ReadFile(calls)
	if err != nil {
		return nil
	}
	var all [][]string
	for _, call := range strings.Split(strings.TrimSuffix(string(recorded), "\n\x00"), "\n\x00") {
		all = append(all, strings.Split(strings.TrimSuffix(call, "\x00"), "\x00"))
	}
	return all
}

// TestDocumentedCommands parses every rltrain command in the README and docs, and resolves the settings of training
// commands.
func TestDocumentedCommands(t *testing.T) {
	pages := must.Get(filepath.Glob("../../../docs/*.md"))(t)
	found := 0
	for _, page := range append(pages, "../../../README.md") {
		for _, args := range documented(t, page) {
			found++
			expect.NoError(t, parses(t, args), "%s: rltrain %s", filepath.Base(page), strings.Join(args, " "))
		}
	}
	expect.True(t, found >= 60, "only %d commands were found", found)
}

// TestDocumentedFiles resolves the settings of every YAML block that starts with "# rltrain --config FILE".
func TestDocumentedFiles(t *testing.T) {
	text := must.Get(os.ReadFile("../../../docs/from-trl.md"))(t)
	blocks := yamlBlock.FindAllSubmatch(text, -1)
	expect.Require(t, len(blocks) >= 2, "%d files were found", len(blocks))
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "config.yaml")
		must.Do(t, os.WriteFile(file, block[1], 0o600))
		expect.NoError(t, parses(t, []string{"--config", file}), "%s", block[1])
	}
}

// parses returns the errors in a command's arguments, without running it.
func parses(t *testing.T, args []string) error {
	t.Helper()
	app := newApp(nil, strings.NewReader(""), io.Discard, io.Discard)
	for i, command := range app.Commands {
		if command.Name == "train" {
			app.Commands[i] = config.TrainCommand(nil, func(context.Context, *config.Config) error { return nil })
			continue
		}
		for _, c := range append(command.Subcommands, command) {
			c.Action = func(*cli.Context) error { return nil }
			if c.Name == "export" {
				c.Action = func(c *cli.Context) error { _, err := checkExport(c); return err }
			}
		}
	}
	argv, err := config.Arguments(app, append([]string{"rltrain"}, args...))
	if err != nil {
		return err
	}
	if len(argv) > 1 && app.Command(argv[1]) == nil && !strings.HasPrefix(argv[1], "-") {
		return fmt.Errorf("there is no command %s", argv[1])
	}
	return app.RunContext(t.Context(), argv)
}
