package lora

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Match lists the names that targets mean, in the order of names, by PEFT's rule:
// a target is a full name, or an ending that follows a dot. A target that means
// nothing is an error that lists what there is.
func Match(names, targets []string) ([]string, error) {
	if err := unmatched(names, targets); err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	var list []string
	for _, name := range names {
		if meantByAny(name, targets) {
			list = append(list, name)
		}
	}
	return list, nil
}

// unmatched reports the first target that means none of names.
func unmatched(names, targets []string) error {
	if len(targets) == 0 {
		return errors.New("no target modules are named")
	}
	for _, target := range targets {
		if !slices.ContainsFunc(names, func(name string) bool { return meant(name, target) }) {
			return fmt.Errorf("target %.120q matches no module (have %s)", target, summary(names))
		}
	}
	return nil
}

func meant(name, target string) bool {
	return name == target || strings.HasSuffix(name, "."+target)
}

func meantByAny(name string, targets []string) bool {
	return slices.ContainsFunc(targets, func(target string) bool { return meant(name, target) })
}

// summary lists names with layers folded into one, at most a screen line or two.
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
