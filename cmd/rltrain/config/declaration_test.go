package config

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestEveryRunCanBeBuilt builds every run and checks what each option requires.
func TestEveryRunCanBeBuilt(t *testing.T) {
	boolean := map[string]bool{}
	for _, d := range envs.Definitions() {
		for _, ch := range choicesOf(d) {
			c, err := ch.withRecipe()
			expect.Require(t, err == nil, "%s, %s, %s: %v", d.Name, ch.mode, ch.algorithm.Name, err)
			for _, o := range c.set.All() {
				c.set.Missing(o)
				isBool := o.Get() == true || o.Get() == false
				before, ok := boolean[o.Name]
				expect.True(t, !ok || before == isBool, "%s is a boolean in some runs only", o.Name)
				boolean[o.Name] = isBool
				expect.True(t, o.Group != "" && !strings.ContainsAny(o.Name, "-. "), "%s: the group is missing, or the name is not snake_case", o.Name)
			}
		}
	}
}

// TestRecipesSayWhatDiffers: a recipe sets only options of its task, and only to values other than the defaults.
func TestRecipesSayWhatDiffers(t *testing.T) {
	for _, d := range envs.Definitions() {
		var all []entry
		for _, ch := range []choice{{task: d}, {task: d, data: true}, {task: d, pretrained: true}} {
			r := must.Get(ch.recipe())(t)
			all = append(all, r.entries...)
		}
		for _, e := range all {
			known, differs := false, false
			for _, ch := range choicesOf(d) {
				c := must.Get(ch.build())(t)
				if o := c.set.Find(e.name); o != nil {
					known = true
					differs = differs || e.value.Text != yamlValue(o.Default())
				}
			}
			expect.True(t, known && differs, "%v: known %v, another value than the default %v", e.source, known, differs)
		}
	}
}

// argsOf are the least arguments of a task.
func argsOf(d envs.Definition) []string {
	if d.Needs != "" {
		return []string{"--task", d.Name, "--dataset", "d"}
	}
	return []string{"--task", d.Name}
}

// TestDefaultsGolden shows the effective settings of every task.
func TestDefaultsGolden(t *testing.T) {
	for _, d := range envs.Definitions() {
		c := must.Get(Load(argsOf(d), nil))(t)
		golden(t, "testdata/defaults_"+d.Name+".yaml", string(c.YAML()))
	}
}

// TestPretrainedGolden shows the settings of every task that has others for a pretrained language model: they apply where
// one is named, and those of model tiny stay.
func TestPretrainedGolden(t *testing.T) {
	load := func(args ...string) *Config {
		return must.Get(Load(args, nil))(t)
	}
	for _, d := range envs.Definitions() {
		if d.ModelRecipe == "" {
			continue
		}
		args := argsOf(d)
		c := load(append(args, "--model", "smollm2")...)
		golden(t, "testdata/pretrained_"+d.Name+".yaml", string(c.YAML()))
		expect.Same(t, "[all-linear]", c.Text("lora_target_modules"), "%s: an adapter on", d.Name)
		diff := Diff(c, load("--config", must.File(t, "config.yaml", string(c.YAML()))))
		expect.True(t, diff == nil, "%s: read again: %v", d.Name, diff)
		expect.True(t, !strings.Contains(string(load(append(args, "--model", TinyModel, "--mode", d.Modes()[0])...).YAML()), "all-linear"),
			"%s: settings of a pretrained model for tiny", d.Name)
	}
}

// TestPretrainedPolicy: a folder with an adapter is a pretrained model, a folder with all weights is not.
func TestPretrainedPolicy(t *testing.T) {
	adapter := must.Folder(t, map[string]string{"adapter_config.json": "{}"})
	for dir, want := range map[string]string{adapter: "8", t.TempDir(): "64"} {
		c := must.Get(Load([]string{"--task", "sum_digits", "--mode", "rl_only", "--pretrained-model", dir}, nil))(t)
		expect.Same(t, want, c.Text("prompts_per_step"), "prompts a step")
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must.Do(t, os.WriteFile(file, []byte(got), 0o644))
	}
	expect.Equal(t, string(must.Get(os.ReadFile(file))(t)), got, fmt.Sprintf("go test -update rewrites %s", file))
}

func TestAliasesPointAtKeys(t *testing.T) {
	known := everything().boolean
	for _, a := range aliases {
		for _, key := range []string{a.key, a.replay, a.pairs, a.oneStage, a.also} {
			_, ok := known[key]
			expect.True(t, ok || key == "", "alias %s: no key %s", a.name, key)
		}
		if _, ok := known[a.name]; ok || a.key == "" && ruleOf(a.name) == nil && a.inert == "" && a.name != accumulation {
			t.Errorf("alias %s is a key, or has no key", a.name)
		}
	}
	seen := map[string]bool{}
	for _, r := range rules {
		_, ok := known[r.name]
		expect.True(t, !ok && !seen[r.name], "%s has a rule and is a key, or has two rules", r.name)
		seen[r.name] = true
	}
	for name := range known {
		expect.True(t, ruleOf(name) == nil, "%s is a key, and has a rule", name)
	}
	for name, others := range ofTheStage {
		for _, key := range append(others, name) {
			_, ok := known[key]
			expect.True(t, ok, "%s: no key %s", name, key)
		}
	}
}

// TestAdviceNamesOptions looks up each option named in advice about other programs' options.
func TestAdviceNamesOptions(t *testing.T) {
	known := everything().boolean
	underscored := regexp.MustCompile(`\b[a-z0-9]+(_[a-z0-9]+)+\b`)
	check := func(name, why string) {
		for _, option := range underscored.FindAllString(why, -1) {
			_, ok := known[option]
			expect.True(t, ok || slices.Contains([]string{"dr_grpo", "use_adaptive_entropy", "push_to_hub", "reward_funcs"}, option), "%s advises %s, which is not an option: %s", name, option, why)
		}
	}
	for _, r := range rules {
		check(r.name, r.why)
	}
}

// TestEveryOptionOfTRLHasAMeaning: each is an option here, sets one, or has a rule.
func TestEveryOptionOfTRLHasAMeaning(t *testing.T) {
	list, _ := trlOptions()
	expect.True(t, len(list) >= 240, "%d options", len(list))
	for _, o := range list {
		expect.True(t, o.here() != "" && isName(o.name), "%s of TRL is unknown", o.name)
	}
}
