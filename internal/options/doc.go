// Package options reads options that are declared once, where they are used: as fields of a struct.
//
//	type PPO struct {
//		ClipLow   float64 `option:"clip_low" default:"0.2" range:"(0,1)" help:"the probability ratio is clipped at 1 - clip_low"`
//		KLHorizon float64 `option:"kl_horizon" default:"10000" range:"[1,)" needs:"kl_target>0" help:"completions over which kl_coef adapts"`
//		Baseline  string  `option:"baseline" default:"group" allowed:"none,group" help:"what is subtracted from a reward"`
//		Rates     Optimisation `prefix:"rl_" group:"Reinforcement learning stage"`
//	}
//
// A field with the tag option is an option. Its kind is bool, int, uint64, float64, string or []string. The other tags:
//
//	default     the default as text; without the tag, the zero value
//	range       of a number: an interval with open or closed ends, either of which may be absent; "0|[1,9]" allows 0 too
//	allowed     the values of a text, separated by commas
//	help        one line
//	arg         placeholder for the value in the help text
//	needs       conditions under which the option applies: see below
//	group       heading in the help text
//	incidental  "true": it changes no result, so a resumed run may change it
//	extends     "true": it sets how long a run lasts, so a resumed run may change it and then ends elsewhere
//	common      "true": it is in the short help text
//	percommand  "true": it belongs to one command, and is neither read from a file nor written to one
//
// A field without the tag option is searched for options if it is a struct or a non-nil pointer to one. Its tags apply
// to all options in it: group, needs, prefix (prepended to their names) and defaults ("a=1,b=2", names without the
// prefix).
//
// Conditions are joined by commas, and all of them must hold: "name" (true, or not empty), "!name", "name=a|b",
// "name!=a", "name=@other" (the value of another option), "name>0"; "name" may also be a fact of Set.Fact. Alternatives
// are joined by " or ", which binds less than " and ".
package options
