package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
)

// TestPipesInAModelFolder: a named pipe in place of a file is an error that names it, and nothing waits for a writer.
func TestPipesInAModelFolder(t *testing.T) {
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			must.Do(t, policy.TinyChatModel(dir, 1, 32, 1))
			if strings.HasSuffix(name, ".index.json") {
				must.Do(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			}
			err := os.Remove(filepath.Join(dir, name))
			expect.Require(t, err == nil || os.IsNotExist(err), "%v", err)
			must.Do(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
			opened := make(chan error, 1)
			go func() {
				p, err := policy.NewCausalLM(policy.Config{Dir: dir})
				if err == nil {
					p.Close()
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				expect.Error(t, err, name, "not a regular file")
			case <-time.After(time.Minute):
				t.Fatal("it waits")
			}
		})
	}
}
