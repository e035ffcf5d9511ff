package config

import (
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/cmd/rltrain/recipes"
)

var update = flag.Bool("update", false, "rewrite recipes/intent.yaml's comments and layout, and the golden files")

// The recipe holds every setting once, in the table's order, with the table's help beside it.
func TestRecipeMatchesTable(t *testing.T) {
	defaults, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	want := defaults.render(func(*key) bool { return true }, func(k *key) string { return k.help })
	if *update {
		if err := os.WriteFile("../recipes/intent.yaml", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), string(recipes.Intent)); diff != "" {
		t.Errorf("recipes/intent.yaml (-table +file); go test -run Recipe -update rewrites it:\n%s", diff)
	}
}

func TestTableMatchesConfig(t *testing.T) {
	config := reflect.TypeFor[Config]()
	for i, k := range keys {
		if tag := config.Field(i).Tag.Get("yaml"); tag != k.name {
			t.Errorf("field %d is tagged %q, the table has %q", i, tag, k.name)
		}
		if k.help == "" || k.stages == 0 || k.group == "" {
			t.Errorf("%s: help, stages or group is missing", k.name)
		}
		if (k.kind == reflect.Int || k.kind == reflect.Float64) && !k.limits.set {
			t.Errorf("%s: a number without limits", k.name)
		}
	}
	exported := 0
	for i := range config.NumField() {
		if config.Field(i).IsExported() {
			exported++
		}
	}
	if exported != len(keys) {
		t.Errorf("Config has %d settings, the table %d", exported, len(keys))
	}
}

func TestAliasesPointAtKeys(t *testing.T) {
	for _, a := range aliases {
		if find(a.key) == nil {
			t.Errorf("alias %s: no key %s", a.name, a.key)
		}
		if find(a.name) != nil {
			t.Errorf("alias %s is a key", a.name)
		}
	}
	for name := range refused {
		if isName(name) {
			t.Errorf("%s is refused and understood", name)
		}
	}
}
