package config

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/rltrain/rltrain/internal/options"
)

// mixtures are the keys under which files of TRL, alignment-handbook and open-r1 describe data sets.
var mixtures = map[string]func(r *fileReader, source Source, node ast.Node) error{
	"datasets": (*fileReader).datasets, "dataset_mixture": (*fileReader).mixture, "dataset_mixer": (*fileReader).mixer, "dataset_splits": (*fileReader).splits,
}

// inDataset is what the keys of a data set's description are called here.
var inDataset = map[string]string{"path": "dataset", "id": "dataset", "name": "dataset_config", "config": "dataset_config", "split": "train_split"}

var errMixture = errors.New("want a list of data sets with a path and a weight; the weight of the first must be 1")

// datasets reads a list of data sets: the first is the option dataset, the others are its mixture.
func (r *fileReader) datasets(source Source, node ast.Node) error {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return errMixture
	}
	var mix []string
	for i, one := range list.Values {
		section, ok := one.(ast.MapNode)
		if !ok {
			return errMixture
		}
		if i > 0 {
			set, err := r.mixed(section)
			if err != nil {
				return err
			}
			mix = append(mix, set)
			continue
		}
		pairs := section.MapRange()
		for pairs.Next() {
			at, key := r.key(pairs.Key())
			value, err := nodeValue(pairs.Value())
			switch name := inDataset[key]; {
			case key == "columns":
			case key == "weight" || key == "fraction":
				if err == nil && value.Syntax != options.Null && !sameValue("1", value.Text) {
					return errMixture
				}
			case err != nil || name == "":
				return fmt.Errorf("cannot read %s at %s; name the rows' files as dataset", key, at)
			case value.Syntax != options.Null:
				r.entries = append(r.entries, entry{name, value, source})
			}
		}
	}
	r.mix(source, mix)
	return nil
}

// mix sets the option dataset_mix.
func (r *fileReader) mix(source Source, sets []string) {
	if sets != nil {
		r.entries = append(r.entries, entry{"dataset_mix", options.Value{List: sets, Syntax: options.List}, source})
	}
}

// mixed reads a data set after the first, as NAME=WEIGHT.
func (r *fileReader) mixed(section ast.MapNode) (string, error) {
	name, weight := "", "1"
	pairs := section.MapRange()
	for pairs.Next() {
		at, key := r.key(pairs.Key())
		value, err := nodeValue(pairs.Value())
		switch {
		case key == "columns":
		case err == nil && inDataset[key] == "dataset":
			name = value.Text
		case err == nil && (key == "weight" || key == "fraction"):
			weight = value.Text
		case err == nil && (value.Syntax == options.Null || key == "split" && value.Text == "train"):
		default:
			return "", fmt.Errorf("cannot read %s at %s: data sets after the first have a path and a weight", key, at)
		}
	}
	if name == "" {
		return "", errMixture
	}
	return name + "=" + weight, nil
}

// mixture reads a section with a list of data sets.
func (r *fileReader) mixture(source Source, node ast.Node) error {
	section, ok := node.(ast.MapNode)
	if !ok {
		return errMixture
	}
	pairs := section.MapRange()
	for pairs.Next() {
		switch at, key := r.key(pairs.Key()); key {
		case "datasets":
			if err := r.datasets(source, pairs.Value()); err != nil {
				return err
			}
		case "seed": // of the mixture
		case "test_split_size":
			value, err := scalar(pairs.Value())
			if err != nil {
				return err
			}
			r.entries = append(r.entries, entry{key, value, Source{Layer: File, Name: source.Name + "." + key, Position: at}})
		default:
			return fmt.Errorf("cannot read %s at %s", key, at)
		}
	}
	return nil
}

// mixer reads a section of data sets' names and weights. That of the first, the option dataset, must be 1.
func (r *fileReader) mixer(source Source, node ast.Node) error {
	section, ok := node.(ast.MapNode)
	if !ok {
		return errMixture
	}
	var mix []string
	n := 0
	pairs := section.MapRange()
	for pairs.Next() {
		share, err := scalar(pairs.Value())
		name := pairs.Key().GetToken().Value
		switch n++; {
		case err != nil || n == 1 && !sameValue("1", share.Text):
			return errMixture
		case n == 1:
			r.entries = append(r.entries, entry{"dataset", options.Value{Text: name}, source})
		default:
			mix = append(mix, name+"="+share.Text)
		}
	}
	r.mix(source, mix)
	return nil
}

// splits reads the list of the training and the evaluation split.
func (r *fileReader) splits(source Source, node ast.Node) error {
	value, err := nodeValue(node)
	if err != nil || value.Syntax != options.List || len(value.List) < 1 || len(value.List) > 2 {
		return errors.New("must be a list of the training and the evaluation split")
	}
	for i, name := range []string{"dataset_train_split", "dataset_test_split"}[:len(value.List)] {
		r.entries = append(r.entries, entry{name, options.Value{Text: value.List[i]}, source})
	}
	return nil
}
