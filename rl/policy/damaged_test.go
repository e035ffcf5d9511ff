package policy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/decision"
)

// saved is a policy with a folder of its own.
type saved interface {
	Save(dir string) error
	LoadWeights(dir string) error
	Close()
}

// filesIn are the names of the files in a folder.
func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, entry := range must.Get(os.ReadDir(dir))(t) {
		expect.Require(t, entry.Type().IsRegular(), "%s is no file", entry.Name())
		names = append(names, entry.Name())
	}
	return names
}

// TestDamagedFolders: a file of a policy that is damaged or missing is an error that names the folder when the policy is loaded, and the
// file when its weights are; one that cannot be written is an error that names it. The few that may be missing are listed.
func TestDamagedFolders(t *testing.T) {
	torchtest.NoLeaks(t)
	overwrite := func(path string) error { return os.WriteFile(path, []byte("\x00{% damaged"), 0o600) }
	encoder := policytest.Encoder(t)
	tiny, chat := filepath.Join(t.TempDir(), "tiny"), filepath.Join(t.TempDir(), "chat")
	must.Do(t, policy.TinyModel(tiny, 1, 32, 7))
	must.Do(t, policy.TinyChatModel(chat, 1, 32, 7))
	client := &hub.Client{}
	classifier := func(dir string) (saved, error) { return policy.LoadClassifier(t.Context(), client, dir, "", true) }
	reward := func(dir string) (saved, error) { return policy.LoadRewardModel(t.Context(), client, dir) }
	made := func(p saved, err error) string {
		t.Helper()
		must.Do(t, err)
		defer p.Close()
		if p, ok := p.(policy.Policy); ok && p.AddValueHead() == nil {
			p.Changed()
		}
		dir := t.TempDir()
		must.Do(t, p.Save(dir))
		return dir
	}
	adapted := func(base string, c policy.Config) policy.Config {
		c.Dir, c.R, c.Alpha, c.Seed = base, 2, 4, 5
		return c
	}
	prompt := func(bool) envs.Observation { return envs.Observation{Text: "Say of " + policy.TextMark + ":"} }
	labels := []string{"law", "art"}
	questions := []decision.Question{{Name: "law", Type: decision.Noul, Options: []string{"true", "false"}, Descriptions: []any{"of law", "not"}}}
	const copied = "config.json generation_config.json tokenizer.json tokenizer_config.json" // of the base model
	head := must.Get(policy.NewClassifier(adapted(encoder, policy.Config{Labels: policy.HeadLabels(questions), Pooling: transformers.PoolMean})))(t)
	for name, kind := range map[string]struct {
		dir              string
		load             func(dir string) (saved, error)
		unread, optional string // files that are not read, and those that are read if there are any
	}{
		"tokens": {made(policy.NewCausalLM(adapted(chat, policy.Config{}))), func(dir string) (saved, error) {
			return policy.LoadCausalLM(t.Context(), client, dir, "", "", true)
		}, "tokenizer.json tokenizer_config.json value_head.safetensors", "chat_template.jinja generation_config.json"},
		"mean":             {made(policy.NewClassifier(adapted(encoder, policy.Config{Labels: labels, Pooling: transformers.PoolMean}))), classifier, "", ""},
		"family":           {made(policy.NewClassifier(adapted(encoder, policy.Config{Labels: labels, Pooling: transformers.PoolFamily}))), classifier, "", ""},
		"last":             {made(policy.NewClassifier(adapted(tiny, policy.Config{Labels: labels}))), classifier, copied + " value_head.safetensors", ""},
		"score":            {made(policy.NewClassifier(adapted(tiny, policy.Config{Labels: labels, Prompt: prompt}))), classifier, copied + " value_head.safetensors", ""},
		"reward":           {made(policy.NewRewardModel(adapted(tiny, policy.Config{}))), reward, copied, "reward_model.json"},
		"encoder's reward": {made(policy.NewRewardModel(adapted(encoder, policy.Config{Pooling: transformers.PoolMean}))), reward, "", ""},
		"questions": {made(policy.NewHeadDecider(head, questions), nil), func(dir string) (saved, error) {
			return policy.LoadDecider(t.Context(), client, dir, "", true, time.Time{})
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := must.Open(kind.load(kind.dir))(t)
			for _, file := range filesIn(t, kind.dir) {
				unread := slices.Contains(strings.Fields(kind.unread), file)
				for _, damage := range []struct {
					do       func(path string) error
					accepted bool
				}{{overwrite, unread}, {os.Remove, unread || slices.Contains(strings.Fields(kind.optional), file)}} {
					dir := t.TempDir()
					must.Do(t, os.CopyFS(dir, os.DirFS(kind.dir)))
					must.Do(t, damage.do(filepath.Join(dir, file)))
					q, err := kind.load(dir)
					if err == nil {
						q.Close()
					}
					expect.True(t, damage.accepted == (err == nil) && (damage.accepted || strings.Contains(err.Error(), dir)), "%s: %v", file, err)
					if file == "adapter_model.safetensors" {
						expect.Error(t, p.LoadWeights(dir), filepath.Join(dir, file))
					}
				}
			}
			again := t.TempDir()
			must.Do(t, p.Save(again))
			for _, file := range filesIn(t, again) {
				dir := t.TempDir()
				must.Do(t, os.MkdirAll(filepath.Join(dir, file, "x"), 0o700))
				expect.Error(t, p.Save(dir), filepath.Join(dir, file))
			}
		})
	}
}
