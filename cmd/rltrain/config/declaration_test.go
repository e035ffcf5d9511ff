package config

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestEveryRunCanBeBuilt puts every run together, and asks of each option what it needs.
func TestEveryRunCanBeBuilt(t *testing.T) {
	boolean := map[string]bool{}
	for _, d := range envs.Definitions() {
		for _, ch := range choicesOf(d) {
			c, err := ch.withRecipe()
			if err != nil {
				t.Fatalf("%s, %s, %s: %v", d.Name, ch.mode, ch.algorithm.Name, err)
			}
			for _, o := range c.set.All() {
				c.set.Missing(o)
				isBool := o.Get() == true || o.Get() == false
				if before, ok := boolean[o.Name]; ok && before != isBool {
					t.Errorf("%s is a boolean in some runs only", o.Name)
				}
				boolean[o.Name] = isBool
				if o.Group == "" || strings.ContainsAny(o.Name, "-. ") {
					t.Errorf("%s: the group is missing, or the name is not snake_case", o.Name)
				}
			}
		}
	}
}

// TestRecipesSayWhatDiffers holds recipes to options that runs of the task have, and to other values than their defaults.
func TestRecipesSayWhatDiffers(t *testing.T) {
	for _, d := range envs.Definitions() {
		recipe, err := recipeOf(d, false)
		if err != nil {
			t.Fatal(err)
		}
		if d.DataRecipe != "" {
			more, err := recipeOf(d, true)
			if err != nil {
				t.Fatal(err)
			}
			recipe = append(slices.Clone(recipe), more...)
		}
		for _, e := range recipe {
			known, differs := false, false
			for _, ch := range choicesOf(d) {
				c, err := ch.build()
				if err != nil {
					t.Fatal(err)
				}
				if o := c.set.Find(e.name); o != nil {
					known = true
					differs = differs || e.value.Text != yamlValue(o.Default())
				}
			}
			if !known || !differs {
				t.Errorf("%v: known %v, another value than the default %v", e.source, known, differs)
			}
		}
	}
}

// TestDefaultsGolden shows the effective settings of every task.
func TestDefaultsGolden(t *testing.T) {
	for _, d := range envs.Definitions() {
		args := []string{"--task", d.Name}
		if d.Needs != "" {
			args = append(args, "--dataset", "d")
		}
		c, err := Load(args, nil)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "testdata/defaults_"+d.Name+".yaml", string(c.YAML()))
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("go test -update rewrites %s (-want +got)\n%s", file, diff)
	}
}

func TestAliasesPointAtKeys(t *testing.T) {
	known := everything().boolean
	for _, a := range aliases {
		for _, key := range []string{a.key, a.replay, a.pairs, a.oneStage, a.also} {
			if _, ok := known[key]; !ok && key != "" {
				t.Errorf("alias %s: no key %s", a.name, key)
			}
		}
		if _, ok := known[a.name]; ok || a.key == "" && refused[a.name] == "" && a.inert == "" && a.name != accumulation {
			t.Errorf("alias %s is a key, or has none", a.name)
		}
	}
	for name := range refused {
		if _, ok := known[name]; ok {
			t.Errorf("%s is refused and a key", name)
		}
	}
	for name := range known {
		if refused[name] == "" && whyRefused(name) != "" {
			t.Errorf("%s is a key of a family that is refused", name)
		}
	}
	for name, others := range ofTheStage {
		for _, key := range append(others, name) {
			if _, ok := known[key]; !ok {
				t.Errorf("%s: no key %s", name, key)
			}
		}
	}
}

// TestAdviceNamesOptions looks up each option that the answer to another program's name advises.
func TestAdviceNamesOptions(t *testing.T) {
	known := everything().boolean
	underscored := regexp.MustCompile(`\b[a-z0-9]+(_[a-z0-9]+)+\b`)
	check := func(name, why string) {
		for _, option := range underscored.FindAllString(why, -1) {
			if _, ok := known[option]; !ok && !slices.Contains([]string{"adamw_torch", "dr_grpo", "chat_template"}, option) {
				t.Errorf("%s advises %s, which is no option: %s", name, option, why)
			}
		}
	}
	for name, why := range refused {
		check(name, why)
	}
	for name, f := range fixed {
		check(name, f.why)
	}
	for _, family := range refusedFamilies {
		check(family.prefix, family.why)
	}
}
