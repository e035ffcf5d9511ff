package lora

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Match returns the names selected by targets, in the order of names. As in PEFT, a target is a full name or a suffix after
// a dot. A target without a match is an error that lists the modules.
func Match(names, targets []string) ([]string, error) { return match(names, targets, ends) }

// MatchSaved is Match of modules_to_save, which may end within a name component, as in PEFT.
func MatchSaved(names, modules []string) ([]string, error) {
	return match(names, modules, strings.HasSuffix)
}

func match(names, targets []string, ends func(name, target string) bool) ([]string, error) {
	if len(targets) == 0 {
		return nil, errors.New("lora: no target modules")
	}
	for _, target := range targets {
		if !slices.ContainsFunc(names, func(name string) bool { return ends(name, target) }) {
			return nil, fmt.Errorf("lora: target %.120q matches no module; choose from %s", target, summary(names))
		}
	}
	var list []string
	for _, name := range names {
		if slices.ContainsFunc(targets, func(target string) bool { return ends(name, target) }) {
			list = append(list, name)
		}
	}
	return list, nil
}

// Except removes the names that one of targets selects.
func Except(names, targets []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return endsInOne(name, targets) })
}

func ends(name, target string) bool {
	return name == target || strings.HasSuffix(name, "."+target)
}

func endsInOne(name string, targets []string) bool {
	return slices.ContainsFunc(targets, func(target string) bool { return ends(name, target) })
}

// rule decides whether and how a linear module is adapted, by its full name with prefix. It is a Config with compiled
// patterns: PEFT's check_target_module_exists and get_pattern_key (0.21).
type rule struct {
	Config
	target, exclude *regexp.Regexp // nil for lists of names
	whole           []*regexp.Regexp
	layers          []*regexp.Regexp
	ranks, alphas   []*regexp.Regexp
}

func (c Config) rule() (*rule, error) {
	r := &rule{Config: c}
	var err error
	if p := c.TargetModules.Pattern; p != "" && !c.TargetModules.all() {
		if r.target, err = compile(`\A(?:%s)\z`, p); err != nil {
			return nil, fmt.Errorf("target_modules: %w", err)
		}
	}
	if p := c.ExcludeModules.Pattern; p != "" {
		if r.exclude, err = compile(`\A(?:%s)\z`, p); err != nil {
			return nil, fmt.Errorf("exclude_modules: %w", err)
		}
	}
	if r.whole, err = compileAll(`\A(^|.*\.)%s($|\..*)`, c.ModulesToSave); err != nil {
		return nil, fmt.Errorf("modules_to_save: %w", err)
	}
	r.layers = []*regexp.Regexp{anyLayer}
	if len(c.LayersPattern) > 0 {
		if r.layers, err = compileAll(`\A(?:^|.*?\.)%s\.(?P<idx>\d+)\.`, c.LayersPattern); err != nil {
			return nil, fmt.Errorf("layers_pattern: %w", err)
		}
	}
	if r.ranks, err = compileAll(byModule, keys(c.RankPattern)); err != nil {
		return nil, fmt.Errorf("rank_pattern: %w", err)
	}
	if r.alphas, err = compileAll(byModule, keys(c.AlphaPattern)); err != nil {
		return nil, fmt.Errorf("alpha_pattern: %w", err)
	}
	return r, nil
}

// byModule turns a key of rank_pattern or alpha_pattern into a regular expression for names.
const byModule = `\A(.*\.)?(%s)$`

// anyLayer finds the layer number without a layers_pattern.
var anyLayer = regexp.MustCompile(`\A.*?\.[^.]*\.(?P<idx>\d+)\.`)

// compile inserts a Python regular expression into format. One that Go lacks or interprets differently is an error.
func compile(format, pattern string) (*regexp.Regexp, error) {
	if strings.Contains(pattern, "{,") || strings.Contains(pattern, "[:") {
		return nil, fmt.Errorf("pattern %.120q uses {,n} or a nested class, which are not supported; list the modules by name", pattern)
	}
	// Compile it by itself first: it must not rely on the parentheses of format.
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, fmt.Errorf("pattern %.120q is not supported (no lookaround, no backreferences): %.120q", pattern, err.Error())
	}
	return regexp.Compile(fmt.Sprintf(format, pattern))
}

func compileAll(format string, patterns []string) ([]*regexp.Regexp, error) {
	var list []*regexp.Regexp
	for _, p := range patterns {
		re, err := compile(format, p)
		if err != nil {
			return nil, err
		}
		list = append(list, re)
	}
	return list, nil
}

func keys[T int | float64](patterns []Pattern[T]) []string {
	var list []string
	for _, p := range patterns {
		list = append(list, p.Key)
	}
	return list
}

// means reports whether a linear module is adapted.
func (r *rule) means(name string) bool {
	matches := func(re *regexp.Regexp) bool { return re.MatchString(name) }
	switch {
	case r.exclude != nil && matches(r.exclude), endsInOne(name, r.ExcludeModules.Names), slices.ContainsFunc(r.whole, matches):
		return false
	case r.target != nil:
		return matches(r.target)
	case r.TargetModules.all(), slices.Contains(r.TargetModules.Names, name):
		return true // layers_to_transform does not apply to full names
	}
	return endsInOne(name, r.TargetModules.Names) && (len(r.Layers) == 0 || r.ofLayers(name))
}

// ofLayers reports whether the module is in one of Layers.
func (r *rule) ofLayers(name string) bool {
	for _, re := range r.layers {
		if m := re.FindStringSubmatch(name); m != nil {
			layer, err := strconv.Atoi(m[re.SubexpIndex("idx")])
			return err == nil && slices.Contains(r.Layers, layer)
		}
	}
	return false
}

// size is a module's rank and scale.
func (r *rule) size(name string) (rank int, scale float64) {
	rank, alpha := r.rankAndAlpha(name)
	return rank, scaleOf(alpha, rank, r.RSLoRA)
}

// rankAndAlpha are a module's: from the first matching pattern, else the defaults.
func (r *rule) rankAndAlpha(name string) (rank int, alpha float64) {
	rank, alpha = r.R, r.Alpha
	if i := slices.IndexFunc(r.ranks, func(re *regexp.Regexp) bool { return re.MatchString(name) }); i >= 0 {
		rank = r.RankPattern[i].Value
	}
	if i := slices.IndexFunc(r.alphas, func(re *regexp.Regexp) bool { return re.MatchString(name) }); i >= 0 {
		alpha = r.AlphaPattern[i].Value
	}
	return rank, alpha
}

// summary lists names with layer numbers collapsed, in at most about two lines.
func summary(names []string) string {
	const most = 12
	var kinds []string
	for _, name := range names {
		parts := strings.Split(name, ".")
		for i, part := range parts {
			if _, err := strconv.Atoi(part); err == nil {
				parts[i] = "*"
			}
		}
		if kind := strings.Join(parts, "."); !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > most {
		kinds = append(kinds[:most], "…")
	}
	return strings.Join(kinds, ", ")
}
