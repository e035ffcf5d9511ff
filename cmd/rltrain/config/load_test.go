package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// ignoreOrigin compares the settings of two configurations alone.
var ignoreOrigin = cmpopts.IgnoreUnexported(Config{})

func defaults(t testing.TB) *Config {
	t.Helper()
	c, err := Defaults(Intent)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inFolder makes a folder with one file, c.yaml, the working folder of the test.
func inFolder(t testing.TB, yaml string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if yaml != "" {
		if err := os.WriteFile("c.yaml", []byte(yaml), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A semantic router's file as its trainer reads it, amid sections of the router.
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

func routerRL(c *Config) {
	c.RLLearningRate, c.Gamma, c.RLBatchSize, c.UpdateEpochs, c.Reward = 1e-5, 0.98, 32, 3, "f1"
}

func TestLoadCommands(t *testing.T) {
	enabled := strings.NewReplacer("ENABLED", "true", "*any", "any").Replace(routerFile)
	disabled := strings.NewReplacer("ENABLED", "false", "*any", "any").Replace(routerFile)
	tests := []struct {
		command string // arguments, split at spaces
		yaml    string
		want    func(*Config)
	}{
		{command: "", want: func(*Config) {}},
		// The flags of the router's training example.
		{command: "--mode supervised", want: func(c *Config) { c.Mode = Supervised }},
		{command: "--mode supervised_then_rl", want: func(*Config) {}},
		{command: "--mode rl_only --pretrained-model models/intent_classifier_supervised", want: func(c *Config) {
			c.Mode, c.PretrainedModel = RLOnly, "models/intent_classifier_supervised"
		}},
		{command: "--model bert-base-uncased", want: func(c *Config) { c.Model = "bert-base-uncased" }},
		{command: "--epochs 2 --rl-episodes 3 --batch-size 8", want: func(c *Config) { c.Epochs = 2 }},
		{command: "--epochs 5 --rl-episodes 10 --batch-size 16", want: func(c *Config) {
			c.Epochs, c.RLEpisodes, c.BatchSize = 5, 10, 16
		}},
		{command: "--reward-metric accuracy", want: func(c *Config) { c.Reward = "accuracy" }},
		{command: "--reward-metric f1", want: func(c *Config) { c.Reward = "f1" }},
		{command: "--reward-metric calibration", want: func(c *Config) { c.Reward = "calibration" }},
		{command: "--output-dir out", want: func(c *Config) { c.OutputDir = "out" }},
		{command: "--mode supervised_then_rl --model bert-base-uncased --epochs 2 --rl-episodes 3 --batch-size 8 --reward-metric accuracy --output-dir models",
			want: func(c *Config) { c.Model, c.Epochs, c.Reward = "bert-base-uncased", 2, "accuracy" }},
		// The flags of its supervised trainer.
		{command: "--mode supervised --model bert-base-uncased --epochs 3 --max-samples 5000 --lora-rank 16 --lora-alpha 32 --learning-rate 3e-5 --enable-feature-alignment",
			want: func(c *Config) {
				c.Mode, c.Model, c.Epochs, c.MaxSamples = Supervised, "bert-base-uncased", 3, 5000
				c.LoraR, c.LoraAlpha, c.LearningRate, c.FeatureAlignment = 16, 32, 3e-5, 0.1
			}},
		// Its configuration file.
		{command: "--config c.yaml", yaml: enabled, want: routerRL},
		{command: "--config c.yaml", yaml: disabled, want: func(c *Config) { c.Mode = Supervised }},
		{command: "--config c.yaml --mode supervised_then_rl", yaml: disabled, want: routerRL},
		{command: "--config c.yaml --mode supervised", yaml: enabled, want: func(c *Config) { c.Mode = Supervised }},
		{command: "--config c.yaml --mode rl_only --pretrained-model m", yaml: enabled, want: func(c *Config) {
			routerRL(c)
			c.Mode, c.PretrainedModel = RLOnly, "m"
		}},
		{command: "--config c.yaml --rl-learning-rate 2e-5", yaml: enabled, want: func(c *Config) {
			routerRL(c)
			c.RLLearningRate = 2e-5
		}},
		{command: "--config c.yaml", yaml: "epochs: 4\nclassifier:\n  rl_training: {gamma: 0.5}\n", want: func(c *Config) {
			c.Epochs, c.Gamma = 4, 0.5
		}},
		// Names of TRL and transformers.
		{command: "--model_name_or_path m --num_train_epochs 1 --per_device_train_batch_size 4 --learning_rate 2e-5 --lr_scheduler_type linear --warmup_ratio 0.1 " +
			"--output_dir o --logging_steps 5 --save_steps 100 --save_total_limit 1 --seed 7 --max_grad_norm 0.5 --weight_decay 0 --max_seq_length 128 " +
			"--lora_r 4 --lora_alpha 8 --lora_dropout 0 --lora_target_modules query,value --report_to none",
			want: func(c *Config) {
				c.Model, c.Epochs, c.BatchSize, c.LearningRate, c.LRSchedulerType, c.WarmupRatio = "m", 1, 4, 2e-5, "linear", 0.1
				c.OutputDir, c.LoggingSteps, c.SaveSteps, c.SaveTotalLimit, c.Seed = "o", 5, 100, 1, 7
				c.MaxGradNorm, c.WeightDecay, c.MaxLength = 0.5, 0, 128
				c.LoraR, c.LoraAlpha, c.LoraDropout, c.LoraTargetModules = 4, 8, 0, []string{"query", "value"}
			}},
		{command: "--num-ppo-epochs 2 --lam 0.9 --cliprange-value 0.1 --gamma 1", want: func(c *Config) {
			c.UpdateEpochs, c.GAELambda, c.ValueClip, c.Gamma = 2, 0.9, 0.1, 1
		}},
		{command: "--config c.yaml", yaml: "model_name_or_path: m\nreport_to: none\nlora_target_modules: [query, 'key']\nlearning_rate: 1e-5\n", want: func(c *Config) {
			c.Model, c.LoraTargetModules, c.LearningRate = "m", []string{"query", "key"}, 1e-5
		}},
		// Spellings.
		{command: "--max_samples=140 --dataset=q.csv --text_column=question --label-column=category --split-column fold", want: func(c *Config) {
			c.MaxSamples, c.Dataset, c.TextColumn, c.LabelColumn, c.SplitColumn = 140, "q.csv", "question", "category", "fold"
		}},
		{command: "--resume --whiten-advantages=false", want: func(c *Config) { c.Resume, c.WhitenAdvantages = true, false }},
		{command: "--resume=false --dataset=", want: func(*Config) {}},
		{command: "--reward custom --reward-expr=correct-0.5*(1-correct)*confidence", want: func(c *Config) {
			c.Reward, c.RewardExpr = "custom", "correct-0.5*(1-correct)*confidence"
		}},
		{command: "--reward accuracy,expr:'max(probs)'=0.5", want: func(c *Config) { c.Reward = "accuracy,expr:'max(probs)'=0.5" }},
		{command: "--seed 18446744073709551615 --epochs 3 --epochs 3", want: func(c *Config) { c.Seed, c.Epochs = 1<<64-1, 3 }},
		{command: "--config c.yaml", yaml: "\ufeffepochs: 3\r\n\"max-length\": 64 # dashes\r\n", want: func(c *Config) { c.Epochs, c.MaxLength = 3, 64 }},
	}
	for _, test := range tests {
		t.Run(test.command, func(t *testing.T) {
			inFolder(t, test.yaml)
			got, err := Load(strings.Fields(test.command), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults(t)
			test.want(want)
			if strings.Contains(test.command, "--config") {
				want.ConfigFile = "c.yaml"
			}
			if diff := cmp.Diff(want, got, ignoreOrigin); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestMathematicsCommands are those of the stepwise trainer of mathematics, without the options that have no equal.
func TestMathematicsCommands(t *testing.T) {
	for _, test := range []struct {
		command, task string
		want          func(*Config)
	}{
		{"--task gsm8k --gsm8k_path data/train_all.json --train_data_file data/train_all.json --test_gsm8k_path data/test_all.json " +
			"--sys_prompt_path policy/stepwise_solver_sys.txt --model_name_or_path meta-llama/Llama-3.2-1B-Instruct " +
			"--ref_model_name meta-llama/Llama-3.2-1B-Instruct --n_few_shot_examples 5 --num_iterations 20 --num_collection_episodes 100 " +
			"--max_trajectory_steps 10 --num_update_steps 4096 --cache_buffer --evaluation_iterations 1 --n_eval_steps 101 " +
			"--buffer_cache_path data/buffer_cache_l1b_k25.jsonl --gradient_accumulation_steps 32 --save_path data/policy_l1b_k25 " +
			"--n_save_iterations 1 --kl_coeff 0.25 --sym_calc --evaluation_at_start --update_ref_iterations 2", GSM8K, func(c *Config) {
			c.Dataset, c.FewShotDataset, c.EvalDataset = "data/train_all.json", "data/train_all.json", "data/test_all.json"
			c.SystemPrompt, c.Model = "policy/stepwise_solver_sys.txt", "meta-llama/Llama-3.2-1B-Instruct"
			c.ReferenceModel, c.FewShot, c.NumSteps, c.PromptsPerStep = "meta-llama/Llama-3.2-1B-Instruct", 5, 20, 100
			c.MaxTrajectorySteps, c.NumUpdateSteps, c.CacheBuffer, c.EvalEvery, c.EvalSamples = 10, 4096, true, 1, 101
			c.BufferCache, c.RLBatchSize, c.OutputDir = "data/buffer_cache_l1b_k25.jsonl", 32, "data/policy_l1b_k25"
			c.SaveSteps, c.KLCoef, c.SymCalc, c.RefUpdateEvery = 1, 0.25, true, 2
		}},
		{"--task gsm8k --reinforce-loss distiller --gsm8k_path t.json --test_gsm8k_path v.json --model_name_or_path m --ref_model_name r " +
			"--num_iterations 10 --num_collection_episodes 200 --nll_coeff 2.0 --stepwise_eval --use_lora --lora_rank 128 --lora_alpha 256 " +
			"--load_buffer_from_cache_at_start --buffer_cache_path b.jsonl --buffer_size 10 --temperature 0.8", GSM8K, func(c *Config) {
			c.ReinforceLoss, c.Dataset, c.EvalDataset, c.Model, c.ReferenceModel = LossDistiller, "t.json", "v.json", "m", "r"
			c.NumSteps, c.PromptsPerStep, c.NLLCoef, c.EvalStepwise, c.Tuning, c.LoraR, c.LoraAlpha = 10, 200, 2, true, "lora", 128, 256
			c.LoadBuffer, c.BufferCache, c.BufferSize, c.Temperature = true, "b.jsonl", 10, 0.8
		}},
		{"--task math --dataset math.parquet --num_iterations 1 --num_collection_episodes 5000 --max_trajectory_steps 16 --num_update_steps 100 " +
			"--gradient_accumulation_steps 16 --kl_coeff 0.5 --buffer_size 100000 --n_few_shot 8 --reward_model_name j --save_best_model", MATH, func(c *Config) {
			c.Dataset, c.NumSteps, c.PromptsPerStep, c.MaxTrajectorySteps, c.NumUpdateSteps = "math.parquet", 1, 5000, 16, 100
			c.RLBatchSize, c.KLCoef, c.BufferSize, c.FewShot, c.Judge = 16, 0.5, 100000, 8, "j"
		}},
		{"--task gsm8k --dataset d --algorithm grpo --samples-per-prompt 4 --kl-coef 0.01 --max-new-tokens 300", GSM8K, func(c *Config) {
			c.Dataset, c.Algorithm, c.SamplesPerPrompt, c.KLCoef, c.MaxNewTokens = "d", "grpo", 4, 0.01, 300
		}},
		{"--task math --dataset d --mode supervised --epochs 2 --tuning full", MATH, func(c *Config) {
			c.Dataset, c.Mode, c.Epochs, c.Tuning = "d", Supervised, 2, "full"
		}},
	} {
		got, err := Load(strings.Fields(test.command), nil)
		if err != nil {
			t.Errorf("%s: %v", test.command, err)
			continue
		}
		want, err := Defaults(test.task)
		if err != nil {
			t.Fatal(err)
		}
		test.want(want)
		if diff := cmp.Diff(want, got, ignoreOrigin); diff != "" {
			t.Errorf("%s (-want +got)\n%s", test.command, diff)
		}
	}
}

func TestPrintedRecipeServesEveryMode(t *testing.T) {
	recipe, err := os.ReadFile("../recipes/intent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inFolder(t, string(recipe))
	for _, args := range [][]string{nil, {"--mode=supervised"}, {"--mode=rl_only", "--pretrained-model=m"}} {
		if _, err := Load(append(args, "--config=c.yaml"), nil); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestPrecedence(t *testing.T) {
	inFolder(t, "epochs: 11\nbatch_size: 12\nlora_r: 13\n")
	got, err := Load(
		[]string{"--lora-r", "33"},
		[]string{"RLTRAIN_CONFIG=c.yaml", "RLTRAIN_BATCH_SIZE=22", "RLTRAIN_LORA_R=23", "RLTRAIN_NUM_PPO_EPOCHS=5",
			"RLTRAIN_LIB=/lib", "RLTRAIN_CACHE=/cache", "RLTRAINING=x", "HOME=/"})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults(t)
	want.Epochs, want.BatchSize, want.LoraR, want.UpdateEpochs, want.ConfigFile = 11, 22, 33, 5, "c.yaml"
	if diff := cmp.Diff(want, got, ignoreOrigin); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	sources := map[string]Source{
		"seed":          {},
		"epochs":        {Layer: File, Name: "epochs", Position: "c.yaml:1:1"},
		"batch_size":    {Layer: Env, Name: "RLTRAIN_BATCH_SIZE"},
		"update_epochs": {Layer: Env, Name: "RLTRAIN_NUM_PPO_EPOCHS"},
		"lora_r":        {Layer: Flag, Name: "--lora-r"},
	}
	for key, want := range sources {
		if diff := cmp.Diff(want, got.Source(key)); diff != "" {
			t.Errorf("source of %s (-want +got)\n%s", key, diff)
		}
	}
}

func TestFlagBeatsVariableForTheFile(t *testing.T) {
	inFolder(t, "epochs: 11\n")
	if err := os.WriteFile("other.yaml", []byte("epochs: 12\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Load([]string{"--config=other.yaml"}, []string{"RLTRAIN_CONFIG=c.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Epochs != 12 || got.ConfigFile != "other.yaml" {
		t.Errorf("epochs %d from %s, want 12 from other.yaml", got.Epochs, got.ConfigFile)
	}
}

func TestSkippedSections(t *testing.T) {
	inFolder(t, strings.NewReplacer("ENABLED", "true", "*any", "any").Replace(routerFile))
	got, err := Load([]string{"--config=c.yaml"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bert_model", "tools", "vllm_endpoints", "default_model", "strategy", "classifier.category_model"}
	if diff := cmp.Diff(want, got.Skipped()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRewardSpec(t *testing.T) {
	tests := []struct{ reward, expr, spec, key string }{
		{"accuracy,f1=0.5", "", "accuracy,f1=0.5", "reward"},
		{"custom", "correct", "expr:'correct'", "reward_expr"},
		{"custom", "predicted == 'law'", `expr:"predicted == 'law'"`, "reward_expr"},
	}
	for _, test := range tests {
		c := &Config{Reward: test.reward, RewardExpr: test.expr}
		if spec, key := c.RewardSpec(); spec != test.spec || key != test.key {
			t.Errorf("%s %s: got %s of %s, want %s of %s", test.reward, test.expr, spec, key, test.spec, test.key)
		}
	}
}

func TestErrorfBlamesTheSource(t *testing.T) {
	inFolder(t, "classifier:\n  rl_training:\n    reward_metric: f2\n")
	c, err := Load([]string{"--config=c.yaml"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"reward": "c.yaml:3:5: classifier.rl_training.reward_metric: unknown f2",
		"model":  "--model: unknown f2",
	} {
		if got := c.Errorf(key, "unknown %s", "f2").Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMissingConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	_, err := Load([]string{"--config", path}, nil)
	if want := "reading the configuration: open " + path + ": no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
