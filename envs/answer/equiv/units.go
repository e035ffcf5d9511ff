package equiv

import (
	"math/big"
	"strings"
)

// measures are units that convert by a factor: their dimension, and their value in its first unit.
var measures = func() map[string]struct {
	dimension string
	factor    *big.Rat
} {
	table := map[string]struct {
		dimension string
		factor    *big.Rat
	}{}
	for dimension, units := range map[string]string{
		"length": "m 1 km 1000 cm 1/100 mm 1/1000 dm 1/10 nm 1/1000000000 in 127/5000 ft 381/1250 yd 1143/1250 mi 201168/125",
		"mass":   "kg 1 g 1/1000 mg 1/1000000 t 1000 lb 45359237/100000000 oz 45359237/1600000000",
		"time":   "s 1 min 60 h 3600 day 86400 week 604800",
		"volume": "l 1 ml 1/1000",
		"money":  "dollar 1 cent 1/100",
		"speed":  "m/s 1 km/h 5/18 mi/h 1397/3125",
		"power":  "W 1 kW 1000",
		"energy": "J 1 kJ 1000",
	} {
		fields := strings.Fields(units)
		for i := 0; i < len(fields); i += 2 {
			factor, _ := new(big.Rat).SetString(fields[i+1])
			table[fields[i]] = struct {
				dimension string
				factor    *big.Rat
			}{dimension, factor}
		}
	}
	return table
}()

// conversion is the factor from the first unit to the second. Of two units in words, one may be more specific: bolts, bolts
// of fabric.
func conversion(from, to string) (*big.Rat, bool) {
	if from == "%" || to == "%" || from == "deg" || to == "deg" {
		return nil, false
	}
	base, power, _ := strings.Cut(from, "^")
	other, otherPower, _ := strings.Cut(to, "^")
	x, known := measures[base]
	y, alsoKnown := measures[other]
	if known && alsoKnown {
		if x.dimension != y.dimension || power != otherPower || len(power) > 1 || power != "" && (power < "2" || power > "3") {
			return nil, false
		}
		factor := new(big.Rat).Quo(x.factor, y.factor)
		one := new(big.Rat).Set(factor)
		for n := byte('1'); power != "" && n < power[0]; n++ {
			factor.Mul(factor, one)
		}
		return factor, true
	}
	if strings.ContainsAny(from+to, "/^*") {
		return nil, false
	}
	if strings.HasPrefix(from+" ", to+" ") || strings.HasPrefix(to+" ", from+" ") {
		return big.NewRat(1, 1), true
	}
	return nil, false
}
