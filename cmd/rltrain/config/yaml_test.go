package config

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestYAMLRoundTrip(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--mode=supervised", "--epochs=7", "--learning-rate=1e-5", "--lora-target-modules=query,a.b", "--feature-alignment=1e-300"},
		{"--mode=rl_only", "--pretrained-model=./a b/ü", "--seed=18446744073709551615", "--target-kl=1", "--rl-learning-rate=12345678.9"},
		{"--dataset=no", "--text-column=true", "--label-column=1e5", "--split-column=null", "--model=007"},
		{"--reward=custom", "--reward-expr=label == 'a: b' # c\n\t\\ \x7f\u0085\u2028", "--output-dir=\"q\""},
		{"--output-dir=- a", "--model=~", "--dataset= "},
	} {
		first := must.Get(Load(args, nil))(t)
		inFolder(t, string(first.YAML()))
		second, err := Load([]string{"--config=c.yaml"}, nil)
		expect.Require(t, err == nil, "%v: %v\n%s", args, err, first.YAML())
		second.General.ConfigFile = ""
		expect.Equal(t, values(first), values(second), args)
	}
}

func TestYAMLOfRouterFileIsComplete(t *testing.T) {
	inFolder(t, strings.NewReplacer("ENABLED", "false", "*any", "any").Replace(routerFile))
	c := must.Get(Load([]string{"--config=c.yaml"}, nil))(t)
	expect.True(t, !bytes.Contains(c.YAML(), []byte("update_epochs")), "settings of the switched-off stage are written:\n%s", c.YAML())
}

func TestYAMLGolden(t *testing.T) {
	want := string(must.Get(os.ReadFile("testdata/written.yaml"))(t))
	inFolder(t, "epochs: 3\n")
	c := must.Get(Load([]string{"--config=c.yaml", "--mode=supervised", "--learning-rate=1e-5", "--dataset=d.csv"}, []string{"RLTRAIN_LORA_R=4"}))(t)
	expect.Equal(t, want, string(c.YAML()))
}

func TestDiff(t *testing.T) {
	load := func(args ...string) *Config {
		return must.Get(Load(args, nil))(t)
	}
	a := load("--epochs=2")
	if d := Diff(a, load("--epochs=2", "--resume", "--output-dir=elsewhere", "--keep-runs=1", "--logging-steps=1", "--save-steps=5", "--threads=3")); d != nil {
		t.Errorf("incidental settings differ: %v", d)
	}
	want := []Difference{{"epochs", "2", "4", true}, {"reward", "accuracy", "f1", false}}
	expect.Equal(t, want, Diff(a, load("--epochs=4", "--reward=f1")))
	modes := Diff(load("--mode=supervised", "--epochs=3"), load("--mode=rl_only", "--pretrained-model=m", "--target-kl=0.02"))
	for _, d := range []Difference{{"mode", "supervised", "rl_only", false}, {"pretrained_model", `""`, "m", false}, {"epochs", "3", "", false}, {"target_kl", "", "0.02", false}} {
		expect.True(t, strings.Contains(diffText(modes), diffText([]Difference{d})), "%v is missing in %v", d, modes)
	}
}

func diffText(list []Difference) string {
	var b strings.Builder
	for _, d := range list {
		b.WriteString(d.Key + ":" + d.A + ">" + d.B + "\n")
	}
	return b.String()
}

// Any file is read or refused with a one-line error; a file that was read survives a round trip.
func FuzzLoadYAML(f *testing.F) {
	for _, seed := range []string{
		"epochs: 3.0\nmode: rl_only\n", routerFile, "", "a", "- a", "a: [1", "seed: 1\nseed: 2", "a: &x 3\nb: *x\n<<: *x", "? [a]\n: 3",
		"{epochs: 3, gamma: }", "model: |\n  x\n  y\n", "model: !!str 3", "reward_expr: \"\\u0085\\x7f\"\nreward: custom",
		"lora_target_modules: [a, 'b', \"c\"]", "dataset: \"a\\tb\"\ntext_column: ' x '", "\ufeffseed: 0x10\r\n", "a: \"x\x00y\"", "---\n---\n%",
		"classifier: {rl_training: {enabled: true}}", "model_init_kwargs: {dtype: fp32, x: [}", "dataset_mixer: {a: 1.0}\ndataset_splits: [b]", "datasets: [{path: a}]",
		"dataset_mixture: {datasets: [{id: a, weight: }], seed: 1}", "chat_template_kwargs: {a: {b: [1]}}\ntask: chat", "hub_token: null\nmax_length: null", "deepspeed: {a: {}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := loadBytes(data)
		if err != nil {
			expect.True(t, !strings.ContainsAny(err.Error(), "\n\r"), "error of several lines: %q", err)
			return
		}
		again, err := loadBytes(c.YAML())
		expect.Require(t, err == nil, "%v in\n%s", err, c.YAML())
		expect.Equal(t, values(c), values(again))
	})
}

func loadBytes(data []byte) (*Config, error) {
	entries, _, err := parseFile("c.yaml", data)
	if err != nil {
		return nil, err
	}
	var found faults
	c := load([][]entry{entries}, &found)
	return c, found.err()
}

// TestNamed: settings that name what a run reads, and not what it writes.
func TestNamed(t *testing.T) {
	for _, test := range []struct {
		args string
		want map[string][]string
	}{
		{"--task=sum_digits --algorithm=reinforce_replay --buffer-cache=b.jsonl --cache-buffer", map[string][]string{"buffer_cache": nil}},
		{"--task=sum_digits --algorithm=reinforce_replay --buffer-cache=b.jsonl --load-buffer", map[string][]string{"buffer_cache": {"b.jsonl"}}},
		{"--task=prompts --dataset=p.jsonl --reward=cmd:judge --turns-cmd=turns", map[string][]string{"dataset": {"p.jsonl"}, "reward": {"cmd:judge"}, "turns_cmd": {"turns"}, "output_dir": nil, "config": nil}},
	} {
		c := must.Get(Load(strings.Fields(test.args), nil))(t)
		named := c.Named()
		for name, want := range test.want {
			expect.Equal(t, want, named[name], fmt.Sprintf("%s: %s", test.args, name))
		}
	}
}
