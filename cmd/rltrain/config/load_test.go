package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// inFolder creates a folder with one file, c.yaml, and makes it the test's working folder.
func inFolder(t testing.TB, yaml string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if yaml != "" {
		must.Do(t, os.WriteFile("c.yaml", []byte(yaml), 0o644))
	}
}

// values are all options of c that apply, as YAML.
func values(c *Config) map[string]string {
	all := map[string]string{}
	for _, o := range c.set.All() {
		if c.set.Applies(o) {
			all[o.Name] = yamlValue(o.Get())
		}
	}
	return all
}

// changes are the options in which c differs from the defaults of its task, mode and algorithm, plus the mode and
// algorithm if they are not the task's defaults.
func changes(t testing.TB, c *Config) map[string]string {
	t.Helper()
	recipe := map[string]string{}
	usual := must.Get(choose([][]entry{entriesOf("task", c.General.Task)}))(t)
	like := []entry{}
	for _, key := range selectors {
		if o := c.set.Find(key); o != nil {
			like = append(like, entriesOf(key, o.Get().(string))...)
		}
	}
	if s, given := c.sources["model"]; given && s.Layer != Recipe {
		like = append(like, entriesOf("model", c.General.Model)...)
	}
	ch := must.Get(choose([][]entry{like}))(t)
	base := must.Get(ch.withRecipe())(t)
	for _, o := range base.set.All() {
		recipe[o.Name] = yamlValue(o.Get())
	}
	if usual, err := choose([][]entry{entriesOf("task", c.General.Task)}); err == nil {
		plain, _ := usual.withRecipe()
		recipe["model"] = yamlValue(plain.General.Model)
	}
	recipe["mode"], recipe["algorithm"] = usual.mode, usual.algorithm.Name
	changed := map[string]string{}
	for name, value := range values(c) {
		if recipe[name] != value {
			changed[name] = value
		}
	}
	return changed
}

func entriesOf(key, value string) []entry {
	e := entry{name: key}
	e.value.Text = value
	return []entry{e}
}

// pairs parses "a=1 b=2".
func pairs(text string) map[string]string {
	m := map[string]string{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		m[name] = strings.ReplaceAll(value, "_SPACE_", " ")
	}
	return m
}

// A semantic router's file as its trainer reads it, among other sections of the router.
const routerFile = `bert_model:
  model_id: sentence-transformers/all-MiniLM-L12-v2
  threshold: 0.6
tools: {enabled: false, top_k: 3}
vllm_endpoints:
  - name: endpoint1
    models: [*any, "b"]
default_model: some/model
strategy: priority
classifier:
  category_model:
    model_id: models/category
    threshold: 0.6
  rl_training:
    enabled: ENABLED
    algorithm: "ppo"
    learning_rate: 1e-5
    gamma: 0.98
    batch_size: 32
    update_epochs: 3
    reward_metric: "f1"
`

const routerRL = "rl_learning_rate=1.0e-05 rl_batch_size=32 update_epochs=3 reward=f1"

func TestLoadCommands(t *testing.T) {
	enabled := strings.NewReplacer("ENABLED", "true", "*any", "any").Replace(routerFile)
	disabled := strings.NewReplacer("ENABLED", "false", "*any", "any").Replace(routerFile)
	for _, test := range []struct{ command, yaml, want string }{
		{"", "", ""},
		// Files. Settings of a stage that is not trained are ignored.
		{"--config c.yaml", enabled, routerRL},
		{"--config c.yaml", disabled, "mode=supervised"},
		{"--config c.yaml --mode supervised_then_rl", disabled, routerRL},
		{"--config c.yaml --mode supervised", enabled, "mode=supervised"},
		{"--config c.yaml --mode rl_only --pretrained-model m", enabled, routerRL + " mode=rl_only pretrained_model=m"},
		{"--config c.yaml --rl-learning-rate 2e-5", enabled, strings.Replace(routerRL, "1.0e-05", "2.0e-05", 1)},
		{"--config c.yaml", strings.Replace(enabled, `"ppo"`, "a2c", 1), strings.Replace(routerRL, " update_epochs=3", "", 1) + " algorithm=a2c"},
		{"--config c.yaml", strings.Replace(enabled, `"ppo"`, "dqn", 1), strings.Replace(routerRL, " update_epochs=3", "", 1) + " algorithm=dqn"},
		{"--config c.yaml", "epochs: 4\nclassifier:\n  rl_training: {update_epochs: 5}\n", "epochs=4 update_epochs=5"},
		{"--config c.yaml", "model_name_or_path: m\nreport_to: none\nlora_target_modules: [query, 'key']\nlearning_rate: 1e-5\nepochs: 4.0\n",
			"model=m lora_target_modules=[query,_SPACE_key] learning_rate=1.0e-05 epochs=4"},
		// Spellings.
		{"--max_samples=140 --dataset=q.csv --text_column=question --label-column=category --split-column fold", "",
			"max_samples=140 dataset=q.csv text_column=question label_column=category split_column=fold " +
				"rl_share=0 samples_per_prompt=1 rl_batch_size=16 buffer_size=2000 rl_episodes=3 eval_every=1 update_epochs=4"},
		{"--resume --whiten-advantages=false", "", "resume=true whiten_advantages=false"},
		{"--resume=false --dataset=", "", ""},
		{"--resume auto --seed 1", "", "resume_from_checkpoint=auto seed=1"},
		{"--resume True --whiten-advantages False --epochs 4.0 --batch-size=4.0", "", "resume=true whiten_advantages=false epochs=4 batch_size=4"},
		{"--reward custom --reward-expr=correct-0.5*(1-correct)*confidence", "", `reward=custom reward_expr="correct-0.5*(1-correct)*confidence"`},
		{"--warmup-steps 10 --rl-warmup-steps=3", "", "warmup_steps=10 rl_warmup_steps=3"},
		// If one stage is trained, its settings need no prefix.
		{"--mode rl_only --pretrained-model m --learning-rate 1e-5 --max-grad-norm 0.5 --max-steps 7 --weight-decay 0.1 --lr-scheduler-type cosine --warmup-ratio 0.3", "",
			"mode=rl_only pretrained_model=m rl_learning_rate=1.0e-05 rl_max_grad_norm=0.5 rl_episodes=7 rl_weight_decay=0.1 rl_lr_scheduler_type=cosine rl_warmup_ratio=0.3"},
		{"--task gsm8k --dataset d --learning-rate 1e-6 --max-steps 3 --warmup-steps 2", "", "dataset=d rl_learning_rate=1.0e-06 num_steps=3 rl_warmup_steps=2"},
		{"--wandb --wandb_project p --experiment_name first", "", "report_to=[wandb] wandb_project=p run_name=first"},
		// TRL names whose meaning depends on the trainer.
		{"--task gsm8k --dataset d --num-iterations 4", "", "dataset=d num_steps=4"},
		{"--task gsm8k --dataset d --algorithm grpo --num-iterations 1", "", "dataset=d algorithm=grpo"},
		{"--task gsm8k --dataset d --algorithm grpo --num-iterations 4", "", "dataset=d algorithm=grpo update_epochs=4"},
		{"--task sum_digits --algorithm grpo --epsilon 0.1", "", "algorithm=grpo clip_low=0.1 clip_high=0.1"},
		{"--task sum_digits --algorithm grpo --epsilon 0.1 --epsilon-high 0.28", "", "algorithm=grpo clip_low=0.1 clip_high=0.28"},
		{"--task sum_digits --algorithm grpo --epsilon-high 0.28 --epsilon 0.1", "", "algorithm=grpo clip_low=0.1 clip_high=0.28"},
		{"--task sum_digits --algorithm grpo --loss-type dapo --scale-rewards False", "", "algorithm=grpo reduction=token advantage_scale=none"},
		{"--task sum_digits --torch-dtype bfloat16 --lr-scheduler-type constant_with_warmup", "", "dtype=bf16 lr_scheduler_type=constant_with_warmup"},
		{"--task sum_digits --optim adamw_torch --use-vllm False --log-completions", "", "verbose=true"},
		// Settings of one algorithm do not reach the others.
		{"--task gsm8k --dataset d --algorithm rloo", "", "dataset=d algorithm=rloo"},
		{"--task math --dataset d --algorithm ppo --gamma 0.9", "", "dataset=d algorithm=ppo gamma=0.9"},
	} {
		t.Run(test.command, func(t *testing.T) {
			inFolder(t, test.yaml)
			got := must.Get(Load(strings.Fields(test.command), nil))(t)
			want := pairs(test.want)
			if strings.Contains(test.command, "--config") {
				want["config"] = "c.yaml"
			}
			expect.Equal(t, want, changes(t, got))
		})
	}
}

// Only the stable loss uses the KL of gsm8k's recipe.
func TestRecipeOfOneLoss(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "0.25",
		"--reinforce-loss on_policy":  "0",
		"--algorithm grpo":            "0",
		"--algorithm rloo":            "0",
		"--algorithm ppo":             "0",
		"--algorithm grpo --beta 0.1": "0.1",
	} {
		expect.Same(t, want, must.Get(Load(strings.Fields("--task gsm8k --dataset d "+args), nil))(t).Text("kl_coef"), "%s: kl_coef", args)
	}
}

func TestPrecedence(t *testing.T) {
	inFolder(t, "epochs: 11\nbatch_size: 12\nlora_r: 13\n")
	got := must.Get(Load(
		[]string{"--lora-r", "33"},
		[]string{"RLTRAIN_CONFIG=c.yaml", "RLTRAIN_BATCH_SIZE=22", "RLTRAIN_LORA_R=23", "RLTRAIN_NUM_PPO_EPOCHS=5",
			"RLTRAIN_LIB=/lib", "RLTRAIN_KERNELS=avx2", "RLTRAIN_CACHE=/cache", "RLTRAINING=x", "HOME=/"}))(t)
	expect.Equal(t, pairs("epochs=11 batch_size=22 lora_r=33 update_epochs=5 config=c.yaml"), changes(t, got))
	sources := map[string]Source{
		"seed":          {},
		"epochs":        {Layer: File, Name: "epochs", Position: "c.yaml:1:1"},
		"batch_size":    {Layer: Env, Name: "RLTRAIN_BATCH_SIZE"},
		"update_epochs": {Layer: Env, Name: "RLTRAIN_NUM_PPO_EPOCHS"},
		"lora_r":        {Layer: Flag, Name: "--lora-r"},
	}
	for key, want := range sources {
		expect.Equal(t, want, got.Source(key), fmt.Sprintf("source of %s", key))
	}
	must.Write(t, "other.yaml", "epochs: 12\n")
	got = must.Get(Load([]string{"--config=other.yaml"}, []string{"RLTRAIN_CONFIG=c.yaml"}))(t)
	expect.Equal(t, pairs("epochs=12 config=other.yaml"), changes(t, got))
}

func TestSkippedSections(t *testing.T) {
	inFolder(t, strings.NewReplacer("ENABLED", "true", "*any", "any").Replace(routerFile))
	got := must.Get(Load([]string{"--config=c.yaml"}, nil))(t)
	want := []string{"bert_model", "tools", "vllm_endpoints", "default_model", "strategy", "classifier.category_model", "classifier.rl_training.gamma"}
	expect.Equal(t, want, got.Skipped())
}

func TestRewardSpec(t *testing.T) {
	for _, test := range []struct{ reward, expr, spec, key string }{
		{"accuracy,f1=0.5", "", "accuracy,f1=0.5", "reward"},
		{"custom", "correct", "expr:'correct'", "reward_expr"},
		{"custom", "predicted == 'law'", `expr:"predicted == 'law'"`, "reward_expr"},
	} {
		o := &LabelRollouts{Reward: test.reward, RewardExpr: test.expr}
		spec, key := o.RewardSpec()
		expect.True(t, spec == test.spec && key == test.key, "%s %s: got %s of %s, want %s of %s", test.reward, test.expr, spec, key, test.spec, test.key)
	}
}

func TestErrorfBlamesTheSource(t *testing.T) {
	inFolder(t, "classifier:\n  rl_training:\n    reward_metric: f2\n")
	c := must.Get(Load([]string{"--config=c.yaml"}, nil))(t)
	for key, want := range map[string]string{
		"reward": "c.yaml:3:5: classifier.rl_training.reward_metric: unknown f2",
		"model":  "--model: unknown f2",
	} {
		expect.Same(t, want, c.Errorf(key, "unknown %s", "f2").Error(), "Errorf")
	}
}

func TestMissingConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	_, err := Load([]string{"--config", path}, nil)
	want := "reading the configuration: open " + path + ": no such file or directory"
	expect.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
}

func TestRewardTimeIsInSeconds(t *testing.T) {
	expect.Same(t, 1500*time.Millisecond, (RewardTime{Timeout: 1.5}).Limit(), "1.5 s")
}

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
	expect.Equal(t, []Difference{{"epochs", "2", "4", true}, {"reward", "accuracy", "f1", false}}, Diff(a, load("--epochs=4", "--reward=f1")))
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
