"""Sample texts for checking a text encoder: languages, scripts, lengths, punctuation, emoji, odd spaces."""

from __future__ import annotations

_PHRASES = """\
red kettle
a photo of a cat
A Photo Of A DOG, running on the beach.
close-up of a rusty screw (M4 × 20 mm)
3 blue chairs & 1 table
it's the dog's ball; they're not ours, we've lost it and I'd say he'll find it
what?! really... no -- yes!!!
#42 @home 100% $5.99 ~ ^ * + = < > | / \\ [brackets] {braces} `code`
snake_case_name and kebab-case-name and CamelCaseName
https://example.com/shop?item=12&colour=red
“curly quotes” and ‘single ones’ – with dashes—and an ellipsis…
ﬁne oﬃce ﬂoor with ligatures
ＦＵＬＬ ｗｉｄｔｈ　１２３
½ cup of crème brûlée, naïve façade
a  text \t with   many spaces\u00a0and\u2003wide ones
ein grüner Wasserkocher aus Metall
Straßenbahn in ZÜRICH
une bouilloire rouge sur la cuisinière
l'été à la plage, ça va ?
una tetera roja de acero inoxidable
¿dónde está el gato? ¡aquí!
uma chaleira vermelha e não azul
un bollitore rosso perché sì
een rode waterkoker
en röd vattenkokare på spisen
rødgrød med fløde
punainen vedenkeitin
czerwony czajnik, żółta łódź
červená rychlovarná konvice
piros vízforraló
ceainic roșu
kırmızı çaydanlık, İstanbul'da IŞIK
ấm đun nước màu đỏ
ketel merah
красный чайник на плите
червоний чайник
ΚΌΚΚΙΝΟΣ ΒΡΑΣΤΉΡΑΣ στη ΣΆΜΟΣ
κόκκινος βραστήρας
קומקום אדום
غلاية حمراء
کتری قرمز
लाल केतली
লাল কেটলি
சிவப்பு கெண்டி
กาต้มน้ำสีแดง
빨간 주전자
赤いやかん
ｱｶｲ ﾔｶﾝ
红色的水壶
一只猫坐在桌子上
მეწამული ჩაიდანი
կարմիր թեյնիկ
ቀይ ማንቆርቆሪያ
🔴 kettle
😀😃😄 👍🏽 👩‍👩‍👧‍👦 🇨🇭🇫🇰
❤️ vs ❤
x
7
1234567890
3.14159 -0.5 1e-9
.
'
'S
"
🐈
don't DON'T DoN’T
antidisestablishmentarianism
Pneumonoultramicroscopicsilicovolcanoconiosis
supercalifragilisticexpialidocious
rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz
e\u0301 combining, \u212b ngstrom, \ufb03
zero\u200bwidth and soft\u00adhyphen
a_b __init__ _
(((nested)))
#hashtag #another
C++ C# F# .NET
H₂O and E=mc²
∑ ∫ √ ≤ ≥ ≠ ∞ π
→ ← ↑ ↓ ★ ☆ ✓
€ £ ¥ ₹ ₿
№ ™ ® © ª º
Dvořák, Škoda, Łódź, Ångström, Ñandú
a photo of the number: "7".
itap of my favourite bicycle
a cropped, low-resolution, black-and-white photograph of something
the quick brown fox jumps over the lazy dog
THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG
a product photo of a white ceramic mug with a chipped handle on a grey background
same text
Same Text
SAME TEXT\
"""
_OTHERS = (
    "  leading and trailing  ",
    "two\nlines\r\nor three",
    " ".join(f"item {number} is red" for number in range(60)),
    "long " * 200,
    "多" * 150,
    "🐱" * 100,
    "a" * 300,
    "ß" * 99 + " end",
    "no spaces,but,many,commas," * 20,
    "Sentence one. Sentence two! Sentence three? " * 15,
)
SAMPLE_TEXTS = (*_PHRASES.split("\n"), *_OTHERS)
"""At least 100 texts, none of them empty; some are longer than the context of the models."""
