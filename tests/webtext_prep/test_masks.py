"""`clean --mask`: e-mail addresses and public IP addresses, what looks like them, and what stays."""

import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from command_kit.errors import UsageError
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean
from webtext_prep.text import masks
from webtext_prep.text.masks import EMAIL, IPV4, IPV6, mask_addresses, mask_emails
from webtext_prep.urls.urls import suffix_list, top_level_domains

EMAILS = r"""
请发邮件到我的邮箱⟦john@gmail.com⟧联系我们，谢谢
请把简历发到⟦zhangsan@qq.com⟧我们会在三天之内回复您，谢谢您的支持。
联系邮箱⟦zhangsan@qq.com⟧请在工作日上午九点到下午五点之间联系我们谢谢大家的支持与理解我们会尽快回复每一封邮件并且认真处理您提出的所有问题与建议感谢您一直以来的关注
メールは⟦john@gmail.com⟧までお願いします
⟦info@corp.co.jp⟧までお願いします。
문의는 ⟦info@corp.co.kr⟧로 보내주세요
이메일⟦hong.gildong@naver.com⟧입니다
ติดต่อ⟦info@corp.co.th⟧ได้เลย
ຕິດຕໍ່⟦info@corp.la⟧ໄດ້
邮箱：⟦wang_wu@163.com⟧；电话：12345
邮箱⟦13800138000@139.com⟧或⟦li-si@126.com⟧均可
（⟦a.b@c.edu.cn⟧）
邮箱⟦john@gmail.com⟧请访问www.corp.cn网站
⟦jane@corp.io⟧请.AL
⟦jane@mail.coéquipiers.fr⟧
「⟦taro+news@docomo.ne.jp⟧」へ
⟦test@例え.jp⟧です
⟦info@例子.中国⟧联系我们
⟦sales@公司.公司⟧。
⟦info@회사.한국⟧으로
⟦info@ไทย.ไทย⟧ ครับ
请写信到邮箱user@example.com联系我们
メールはuser@example.comまで
⟦john@gmail.com⟧:hunter2
⟦jane.roe@yahoo.co.uk⟧:Passw0rd!
⟦john@gmail.com⟧:8080
Email:⟦john@gmail.com⟧:work
sip:⟦john@voip.net⟧:5060
sips:⟦john@voip.net⟧;transport=tls
xmpp:⟦jane@jabber.org⟧/home
<sip:⟦+14155550100@voip.net⟧:5060>
⟦john@gmail.com⟧;hunter2;2012
⟦john@gmail.com⟧|hunter2
⟦jane@corp.io⟧:pa/ss
⟦jane@corp.io⟧_
_⟦jane@corp.io⟧_
__⟦jane@corp.io⟧__ and *⟦jane@corp.io⟧*
⟦jane@corp.io⟧1
⟦jane@corp.io⟧12, ⟦bob@corp.io⟧3
⟦jane＠corp.io⟧
联系⟦jane＠corp.com⟧谢谢
⟦jane﹫corp.io⟧
⟦{jane,bob}@corp.io⟧
⟦{jane, bob, al.green}@cs.corp.edu⟧
⟦\{jane, bob\}@corp.io⟧
⟦{jane|bob}@corp.io⟧
⟦jane%40corp.io⟧
?email=⟦jane%40corp.io⟧&x=1
https://a.org/?to=⟦jane.doe%40corp.io⟧&cc=⟦bob%40corp.io⟧
mailto%3A⟦jane%40corp.io⟧%3Fsubject
%3C⟦jane@corp.io⟧%3E
?q=%20⟦jane%2Blist%40corp.io⟧
⟦"quoted name"@corp.io⟧
To: ⟦"jane doe"@corp.io⟧, ⟦bob@corp.io⟧
⟦first/last@gmail.com⟧
⟦a@gmail.com@evil.com⟧
⟦a@gmail.com@evil.com@worse.org⟧ x
⟦john@web.xn--p1ai⟧
⟦john@xn--e1afmkfd.xn--p1ai⟧.
⟦ivan@пример.рф⟧ и
⟦иван@пример.рф⟧
Пишите на ⟦ivan@yandex.ru⟧.
Пишите на ⟦иван1@почта.рф⟧, если
⟦müller@exämple.de⟧
⟦josé.garcía@correo.es⟧
⟦παύλος@mail.gr⟧
⟦info@भारत.भारत⟧ पर
ईमेल ⟦info@corp.in⟧ पर
البريد ⟦ali@site.com.sa⟧ شكرا
בדוא"ל ל⟦dana@corp.co.il⟧ בהקדם
እባክዎ ⟦abebe@mail.et⟧ ላይ
⟦aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@corp.io⟧ x
⟦jane@corp.io⟧.
⟦jane@corp.io⟧.Please write
⟦jane@gmail.com⟧.It is
⟦jane@gmail.com⟧.then
⟦jane@corp.co.uk⟧.这是
⟦jane@corp.io⟧...
⟦jane@corp.io⟧!
⟦jane@corp.io⟧?subject=Hi
mailto:⟦jane@corp.io⟧?cc=⟦bob@corp.io⟧
<⟦jane@corp.io⟧>
[⟦jane@corp.io⟧](mailto:⟦jane@corp.io⟧)
<a href="mailto:⟦jane@corp.io⟧">⟦jane@corp.io⟧</a>
"⟦jane@corp.io⟧","⟦bob@corp.io⟧"
{"email":"⟦jane@corp.io⟧","n":1}
{"m": "\u003c⟦jane@corp.io⟧\u003e\n⟦bob@corp.io⟧\n"}
Jane,Doe,⟦jane@corp.io⟧,8
x=⟦c@d.info⟧
⟦o'brien@a.org⟧
'⟦bob+list@b.co.uk⟧'
⟦JANE@SUB-DOMAIN.ORG⟧
⟦jane@a.org⟧-or ⟦jane@b.org⟧/path
⟦a..b@c.org⟧
⟦b&b@hotel.it⟧
?a=1&⟦jane@corp.io⟧
⟦jane%relay@host.org⟧
⟦bounce+jane=corp.io@lists.org⟧
http://⟦jane@corp.io⟧
http://⟦jane@corp.io⟧ and more
https://site.org/users/⟦jane@corp.io⟧/edit
http://mailto:⟦jane@corp.io⟧
https://user:⟦jane@corp.io@proxy.io⟧/
mailto://⟦jane@corp.io⟧
jane@⟦bob@corp.io⟧
@⟦jane@mastodon.social⟧
CORP\⟦jane@corp.io⟧
⟦jane\@corp.io⟧
\texttt{⟦jane@corp.io⟧}
\href{mailto:⟦jane@corp.io⟧}{⟦jane@corp.io⟧}
\email{⟦jane@cs.corp.edu⟧}
Author: Jane <⟦jane@corp.io⟧> 2020
Co-authored-by: Jane <⟦12345+jane@users.noreply.github.com⟧>
--author=⟦jane@corp.io⟧
2020-01-01 12:00:00 INFO user=⟦jane@corp.io⟧ ip=8.8.8.8
Nov 23 postfix/smtp[1]: to=<⟦jane@corp.io⟧>, relay=mx.corp.io
jane (at) corp.io <⟦jane@corp.io⟧>
⟦jane@corp.io⟧(Jane)
⟦zhangsan@qq.com⟧(工作)
⟦zhangsan@qq.com⟧（工作）
E-Mail:⟦max@firma.de⟧/Tel. 1
⟦jane@corp.photography⟧ ⟦bob@corp.museum⟧
⟦jane@a.b.c.d.e.org⟧
⟦1@2.de⟧
⟦jane@my_host.com⟧
⟦jane@corp.io⟧|⟦bob@corp.io⟧
⟦jane@corp.io⟧,⟦bob@corp.io⟧;⟦al@corp.io⟧/⟦ed@corp.io⟧
⟦jane@corp.io⟧'s
⟦jane@corp.io⟧’s
⟦jane@corp.io⟧#x
⟦jane@corp.io⟧&copy
⟦jane@corp.io⟧*
⟦jane@corp.io⟧é
お問い合わせ先：⟦support@rakuten.co.jp⟧（平日10時～18時）
詳しくは⟦info@toyota.jp⟧、または⟦press@toyota.jp⟧へ。
有问题请联系QQ邮箱⟦2087654321@qq.com⟧，或微信同号
投稿邮箱:⟦tougao@people.cn⟧欢迎来稿
⟦dev@kakao.com⟧에 문의하세요
메일 주소는⟦help@daum.net⟧이며
Kontakt: ⟦max.mustermann@web.de⟧ – gerne auch telefonisch
Écrivez à ⟦marie-claire.dupont@orange.fr⟧ ; merci
Escríbenos a ⟦atención@correo.com.mx⟧ o llama
Свяжитесь с нами: ⟦support@рос.сайт⟧ или по телефону
آدرس ایمیل:⟦reza@chmail.ir⟧ است
संपर्क करें ⟦sampark@nic.in⟧।
தொடர்புக்கு:⟦tamil@kalvi.lk⟧
ส่งอีเมลไปที่⟦somchai@gmail.com⟧ภายในวันศุกร์
Liên hệ:⟦hotro@vnpt.vn⟧để được
\author{Jane Roe\thanks{⟦jane.roe@uni-bonn.de⟧}}
\{⟦jroe@mit.edu⟧\}
\url{⟦jroe@mit.edu⟧}
\texttt{⟦\{a.roe,b.doe\}@inria.fr⟧}
$\langle$⟦jroe@mit.edu⟧$\rangle$
assert user.email == '⟦jane@corp.dev⟧'
EMAIL="⟦root@corp.cloud⟧"
echo hi | mail -s x ⟦ops@corp.team⟧
scp x.txt ⟦jane@host.corp.io⟧:x.txt
[E-mail me](mailto:⟦jane@corp.io⟧ "write")
[⟦jane@corp.io⟧]: mailto:⟦jane@corp.io⟧
| Jane | ⟦jane@corp.io⟧ | 3 |
1,"Roe, Jane",⟦jane@corp.io⟧,"⟦j2@corp.io⟧"
jane;⟦jane@corp.io⟧;secret
⟦jane@corp.io⟧	secret
{"to":["⟦a.b@corp.io⟧","⟦c.d@corp.io⟧"],"cc":null}
{\"email\":\"⟦jane@corp.io⟧\"}
email: ⟦jane@corp.io⟧, password: x@y
Jul  1 sshd[1]: Failed password for ⟦jane@corp.io⟧ from 8.8.8.8 port 22
<⟦20200101.ab12@mail.corp.com⟧>
Received: by mx.google.com with SMTP id x for <⟦jane@corp.io⟧>; Mon
Reply-To: "Roe, Jane (X)" <⟦jane_roe-x@corp.co.nz⟧>
EMAIL;TYPE=work:⟦jane@corp.io⟧
ATTENDEE;CN=Jane:mailto:⟦jane@corp.io⟧
href='mailto:⟦jane@corp.io⟧'>Mail</a>
(e-mail:⟦jane@corp.io⟧)
Tel: +1 555, ⟦jane@corp.io⟧/⟦joe@corp.io⟧
—⟦jane@corp.io⟧—
»⟦jane@corp.io⟧«
“⟦jane@corp.io⟧”
https://web.archive.org/web/2020/mailto:⟦jane@corp.io⟧
https://x.com/login?u=⟦jane@corp.io⟧&p=1#a
acct:⟦jane@mastodon.social⟧
⟦jane@corp.io⟧→⟦joe@corp.io⟧
tel:+1-555;⟦jane@corp.io⟧
uid=jane,mail=⟦jane@corp.io⟧,dc=corp
CN=⟦jane@corp.io⟧/O=Corp
⟦jane@corp.io⟧ⓒ
如有疑问请发送至⟦service@taobao.com⟧，客服热线95188
⟦yamada@co.jp⟧宛に送信
連絡先は⟦suzuki_ichiro@softbank.ne.jp⟧です。
（メール：⟦info@kyoto-u.ac.jp⟧）
이메일:⟦park@snu.ac.kr⟧,전화:02
⟦kim@korea.kr⟧과 ⟦lee@korea.kr⟧에게
작성자⟦admin@site.kr⟧님
投诉邮箱⟦ts@12315.cn⟧电话12315
微信/QQ/邮箱：⟦abc@vip.qq.com⟧。微信公众号
⟦jan.novák@seznam.cz⟧ píše
pište na adresu:⟦novak@firma.cz⟧.
⟦καλημέρα@site.gr⟧;
⟦info@παράδειγμα.ελ⟧.
Почта:⟦info@mail.ru⟧;тел.:8-800
⟦ivan.petrov@рога-и-копыта.рф⟧
للتواصل:⟦info@alarabiya.net⟧.
راسلونا على ⟦info@موقع.شبكة⟧
ارسال بـ⟦info@mail.ir⟧
כתבו לנו: ⟦office@bgu.ac.il⟧.
ई-मेल:⟦ram@gov.in⟧।
ই-মেইল⟦info@bd.com.bd⟧
E-posta:⟦ali.öz@şirket.com.tr⟧'den
⟦ali@mail.com⟧'a yaz
\correspondingauthor{⟦j.smith@cfa.harvard.edu⟧}
\footnote{e-mail: ⟦j.smith@cfa.harvard.edu⟧.}
\author{A.~Smith\inst{1}\email{⟦a@b.edu⟧}}
$^*$⟦x@y.edu⟧, $^\dagger$⟦z@w.edu⟧
*Corresponding author:⟦j@mit.edu⟧
⟦{first.last, second.last}@research.google.com⟧
⟦{a,b}@x.edu⟧, ⟦{c,d}@y.edu⟧
std::cout << "⟦me@mine.me⟧";
char *s = "⟦me@mine.me⟧\n";
'⟦me@mine.me⟧'.split('@')
"from": "Jane <⟦jane@corp.ai⟧>"
to=⟦jane@corp.ai⟧&from=⟦joe@corp.ai⟧
mailto:⟦jane@corp.ai⟧,⟦joe@corp.ai⟧?subject=a%20b&body=c
[mail](mailto:⟦jane@corp.ai⟧?subject=x)
![x](a@2x.png) ⟦jane@corp.ai⟧
<mailto:⟦jane@corp.ai⟧|⟦jane@corp.ai⟧>
<td>⟦jane@corp.ai⟧</td><td>⟦joe@corp.ai⟧</td>
name,mail\nJane,⟦jane@corp.ai⟧\n
id:7|mail:⟦jane@corp.ai⟧|pw:x@y
[2020-01-01 00:00:00] login ⟦jane@corp.ai⟧: OK
Jul 1 00:00:00 mx dovecot: user=<⟦jane@corp.ai⟧>, rip=1.1.1.1
https://⟦jane@corp.ai⟧
vscode://x?u=⟦jane@corp.ai⟧
https://corp.ai/#/u/⟦jane@corp.ai⟧
⟦jane@corp.ai⟧:⟦joe@corp.ai⟧
⟦jane@corp.ai⟧:123456:2020
⟦jane@corp.ai⟧----hunter2
⟦jane@corp.ai⟧ : hunter2
Username:⟦jane@corp.ai⟧Password:x
⟦jane@corp.ai⟧Phone
⟦Jane.Roe@Corp.AI⟧
⟦jane@corp.ai⟧..⟦joe@corp.ai⟧
⟦john@gmail.com⟧Phone.Then
"""
NO_EMAILS = r"""
q@k.transpose(-2,-1)
A@B.inverse()
x@w.mean(0)
X@self.weights.flat[0]
x@w.to(device)
x@w.data + b
y = a@b.name
W@self.proj.name
attn = q@k.T / d
return this@MainActivity.name
\@author@name.tex
\makeatletter\@title@page.sty
ssh://git@github.com/me/it
git+ssh://git@github.com/me/it.git
git@github.com:me/it
git clone git@host.org:path
git@host:path
git@github.com/me/it
hg@bitbucket.org:me/it
jane@host.org:work/it.git
root@server.org:/etc/passwd
jane@server.org:~/notes
https://jane:secret@corp.io/x
https://jane@bitbucket.org/team/it.git
ftp://anonymous@ftp.corp.org/pub
postgres://app:secret@db.corp.io:5432/x
rsync://jane@corp.io/module
a@b, you@@a.org, @jane.doe, twitter.com/@jack.dorsey
icon@2x.png sprite@3x.webp logo@2x.ai clip@1.5x.mov
lodash@4.17.21.zip and x@v1.0.2.zip
user@example.com, root@localhost.localhost, me@host.test, me@mail.example.org
5 @ 3.50 each
jane at example dot org
jane @ corp.io
{user}@corp.io and ${USER}@corp.io and {{name}}@corp.io
%s@corp.io.
@corp.io
#@corp.io
"@corp.io
用户@公司.中国
メール@サイト.みんな
user@host.local admin@server.internal
getty@tty1.service systemd-fsck@dev-sda1.service
com.foo.Bar@1a2b3c4d
@Override @org.junit.Test
https://medium.com/@jane.doe/post-1
https://www.google.com/maps/@48.85,2.35,15z
12345678@N00
npm i @angular/core@12.0.1
user%2540corp.io
100%40.00 and 50%40a
a@b.c
x@y.notadomain
SELECT @a.b, @@version
const re = /^[^@]+@[^@]+\.[a-z]+$/;
re.compile(r"[\w.]+@[\w.]+\.com")
def f(x): return x@self.w.T + b@self.u.to(dev)
y = (x@w1).relu()@w2.t()
@app.route("/x")
@pytest.mark.parametrize
z = X@W.T.contiguous()
out = h@params.weight.T
attn=(q@k.transpose(-2,-1)).softmax(-1)@v.float()
e = a@b.int()
M@N.conj().T
logits = x@emb.weight.data.t()
if not email.endswith("@corp.com"):
printf("%s@%s.com", u, h)
rsync -a jane@backup.corp.io:/srv/x .
git remote add o git@gitlab.com:group/sub/p.git
git clone ssh://git@git.corp.io:2222/a/b.git
git clone https://oauth2:tok3n@gitlab.com/a/b.git
pip install git+https://git@github.com/a/b.git@v1.0
pip install "pkg @ git+ssh://git@github.com/a/b.git"
DATABASE_URL=mysql://root:pw@db.corp.io:3306/x
amqp://guest:guest@rabbit.corp.io/
follow @jane.doe on x.com/@joe
npx create-x@latest.1 && npm i a@npm:b@1.2.3
docker pull repo/img@sha256:ab.cd
kubectl get po -n x@y
Price: 3@$4.50; 2@1.99
https://t.me/@jane.me
matrix: @jane:matrix.org
jane@corp.io.invalid
model.forward(x@W.dot(v))
np.linalg.norm(A@x.reshape(-1)-b)
self.w@x.T
K = J.T@W@J
loss = (p@q.log()).sum()
a = x@(y.z)
@dataclass
@Component.register("x")
foo@bar
jane@corp.ai.local
ldap://jane@corp.ai/dc=x
ftp://jane:pw@ftp.corp.ai/x
smb://jane@nas.corp.ai/share
svn+ssh://jane@svn.corp.ai/x
https://corp.ai/@jane.io
x@w.toDevice(y)
obj@list.isEmpty()
"""
ADDRESSES = r"""
服务器⟦8.8.8.8⟧很快
IP为⟦8.8.8.8⟧。
服务器⟦8.8.8.8⟧宕机
サーバー⟦8.8.4.4⟧です
서버⟦8.8.4.4⟧에서
地址⟦2001:4860:4860::8888⟧可用
⟦8.8.8.8⟧-⟦9.9.9.9⟧
⟦93.184.216.34⟧-⟦93.184.216.40⟧
⟦93.184.216.34⟧ - ⟦93.184.216.40⟧
⟦93.184.216.34⟧–⟦93.184.216.40⟧
⟦2001:4860:4860::8888⟧: ttl=1
⟦2001:4860:4860:0:0:0:0:8888⟧: ok
ping6 ⟦2001:4860:4860::8888⟧:
IPv6:⟦2001:4860:4860::8888⟧
addr:⟦2607:f8b0::1⟧/64 Scope
source:⟦2607:f8b0::1⟧
[⟦2607:f8b0::1⟧]:80 or ⟦2001:4860:4860:0:0:0:0:8888⟧
⟦2a00:1450:4001:81b::200e⟧%eth0
⟦2a00::⟧/16
⟦8.8.8.8⟧, (⟦1.1.1.1⟧:53) and http://⟦9.9.9.9⟧/x.
from ⟦8.8.4.0⟧/24
::ffff:⟦8.8.8.8⟧
_⟦8.8.8.8⟧_ **⟦8.8.8.8⟧** `⟦8.8.8.8⟧`
ip=⟦8.8.8.8⟧&x=1
"ip": "⟦8.8.8.8⟧"
kernel: ⟦93.184.216.34⟧ dropped
kernel: IN=eth0 SRC=⟦93.184.216.34⟧ DST=⟦8.8.8.8⟧
⟦93.184.216.34⟧ - - [10/Oct/2000:13:55:36] "GET / HTTP/1.0" 200 1
https://ipinfo.io/⟦8.8.8.8⟧
//⟦8.8.8.8⟧/share \\⟦8.8.8.8⟧\share
jane@[⟦8.8.8.8⟧]
⟦8.8.8.8⟧, ⟦8.8.4.4⟧ and ⟦1.1.1.1⟧
IPs ⟦8.8.8.8⟧、⟦8.8.4.4⟧和⟦1.1.1.1⟧
⟦8.8.8.8⟧.
⟦8.8.8.8⟧: ok
⟦8.8.8.8⟧;⟦8.8.4.4⟧
host ⟦8.8.8.8⟧ runs version 1.2.3.4
nameserver ⟦8.8.8.8⟧
8.8.8.8.in-addr.arpa but ⟦8.8.8.8⟧
https://⟦8.8.8.8⟧:8443/a/1.2.3.4a
⟦8.8.8.8⟧ via ⟦1.1.1.1⟧ dev eth0
if ip == "⟦8.8.8.8⟧":
メインサーバは⟦203.104.209.7⟧です。
请把DNS改成⟦114.114.114.114⟧或者⟦8.8.8.8⟧
IP地址：⟦1.2.4.8⟧，端口：80
사용자⟦211.234.1.9⟧님이
IP-адрес ⟦77.88.8.8⟧, порт 53
Serveur DNS : ⟦80.67.169.12⟧
تم الدخول من ⟦41.33.2.1⟧ اليوم
ที่อยู่⟦8.8.8.8⟧ของ
allow from ⟦93.184.216.0⟧/24;
⟦93.184.216.34⟧:443->⟦8.8.8.8⟧:53
("⟦93.184.216.34⟧", 80)
{"src":"⟦93.184.216.34⟧","dst":"10.0.0.1"}
1,⟦93.184.216.34⟧,GET
⟦93.184.216.34⟧	-	GET
[⟦93.184.216.34⟧]
<⟦93.184.216.34⟧>
host=⟦93.184.216.34⟧;port=1
ssh root@⟦93.184.216.34⟧
http://user:pw@⟦93.184.216.34⟧/x
https://⟦93.184.216.34⟧/a-1.2.3.4.zip
X-Forwarded-For: ⟦93.184.216.34⟧, ⟦8.8.8.8⟧, 10.0.0.1
Received: from mx (mx.corp.io [⟦93.184.216.34⟧])
iptables -A INPUT -s ⟦93.184.216.34⟧ -j DROP
route add ⟦93.184.216.34⟧ gw 10.0.0.1
64 bytes from ⟦93.184.216.34⟧: icmp_seq=1
PING corp.io (⟦93.184.216.34⟧): 56 data
Nov 23 12:00:01 fw kernel: DROP ⟦93.184.216.34⟧
spf1 ip4:⟦93.184.216.34⟧ ip6:⟦2a00:1450:4001:81b::200e⟧ -all
AAAA ⟦2606:2800:220:1:248:1893:25c8:1946⟧
inet6 ⟦2606:2800:220:1:248:1893:25c8:1946⟧/64
http://[⟦2606:2800:220:1:248:1893:25c8:1946⟧]:8080/
IPv6地址是⟦2400:3200::1⟧和⟦2400:3200:baba::1⟧。
⟦2400:3200::1⟧-⟦2400:3200::9⟧
当前IP：⟦113.108.209.1⟧广东省深圳市电信
本机IP为⟦113.108.209.1⟧，网关10.0.0.1
アクセス元⟦126.72.3.4⟧から
아이피⟦175.223.1.2⟧차단
⟦8.8.8.8⟧ (Google DNS)
⟦8.8.8.8⟧/⟦8.8.4.4⟧
dig @⟦8.8.8.8⟧ corp.ai
curl -x ⟦93.184.216.34⟧:8080 http://x
proxy ⟦93.184.216.34⟧:3128:user:pw
⟦93.184.216.34⟧|Jane|x
"⟦93.184.216.34⟧";"x"
'⟦93.184.216.34⟧'
ip:⟦93.184.216.34⟧
remote=⟦93.184.216.34⟧ local=10.1.1.1
Banned: ⟦93.184.216.34⟧, ⟦93.184.216.35⟧, ⟦93.184.216.36⟧.
deny ⟦2a00:1450:4001:81b::200e⟧;
[⟦2a00:1450:4001:81b::200e⟧]:443
⟦2a00:1450:4001:81b::200e⟧.
⟦2a00:1450:4001:81b::200e⟧, ⟦2a00:1450:4001:81b::200f⟧
"""
NO_ADDRESSES = r"""
Version: 4.3.2.1
version=8.8.8.8
Version=4.0.0.0
v. 8.8.8.8
v 8.8.8.8
(v. 1.2.3.4)
version 1.2.3.4, v1.2.3.4, release 11.2.0.4, section 4.4.4.4, § 4.4.4.4
versions 1.2.3.4, 1.2.3.5 and 1.2.3.6
versions 1.2.3.4, 1.2.3.5, 1.2.3.6, 1.2.3.7, 1.2.3.8, 1.2.3.9, and 1.2.4.1 are out
Versions: 1.2.3.4/1.2.3.5
versions 1.2.3.4-1.2.3.8
versions 1.2.3 and 1.2.3.4
from version 1.2.3.4 to 1.2.3.5
"version": "1.2.3.4"
<version>1.2.3.4</version>
version = '1.2.3.4'
version is 1.2.3.4
Version number: 1.2.3.4
Firefox/3.6.3.1
Mozilla/5.0 Firefox/3.6.3.1 Safari/5.1.7.4
curl/7.1.2.3
kernel 5.4.0.42
Linux 2.6.32.61
linux-2.6.32.61
OID 1.3.6.1
OID: 1.3.6.1
Fig. 1.2.3.4
Figure 1.2.3.4
Section: 4.1.2.3
sec. 4.1.2.3
see 2.1.3.4 Installation
See also 2.1.3.4 Installation
rev 1.2.3.4
rev. 1.2.3.4
31.12.20.21
no. 1.2.3.4
Chapter 1.2.3.4
版本1.2.3.4
版本号：1.2.3.4
当前版本为1.2.3.4
バージョン1.2.3.4
버전 1.2.3.4
เวอร์ชัน 1.2.3.4
संस्करण 1.2.3.4
версия 1.2.3.4
версии 1.2.3.4 и 1.2.3.5
versión 1.2.3.4
الإصدار 1.2.3.4
第1.2.3.4节
Abschnitt 1.2.3.4
the 1.2.3.4 release
foo>=1.2.3.4
bar ~> 1.2.3.4
firmware 1.2.3.4
build 1.2.3.4
10.0.0.1 192.168.1.1 127.0.0.1 169.254.169.254 192.0.2.7
1.2.3.4.5 999.1.1.1 8.8.8.8-9 01.02.03.04 8.8.8.8a
1.2.3.4-beta 1.2.3.4-1ubuntu2 foo_1.2.3.4
12:34:56, 2024:01:02:03:04:05:06:07:08, std::vector, fe80::1, ::1, 2001:db8::7
3.14.15 and 2.7.18
foo-1.2.3.4.tar.gz
服务器192.0.2.1很快
Chrome 49.0.2.1 and Opera 9.8.7.6
Java 1.8.0.2
Windows 10.0.1.2
.NET Framework 4.0.3.1
MySQL 5.1.7.3
nginx/1.2.3.4
User-Agent: Wget/1.2.3.4
upgraded to v1.2.3.4
ver. 1.2.3.4 beta
Ver: 1.2.3.4
Release Notes 1.2.3.4
version: v1.2.3.4
version "1.2.3.4"
Version 1.2.3.4 (build 1.2.3.9)
AssemblyVersion("1.2.3.4")
FileVersion=1.2.3.4
app_version: 1.2.3.4
min-version=1.2.3.4
<Version>4.5.6.7</Version>
"ProductVersion": "4.5.6.7",
Section 4.1.2.3 and 4.1.2.4
Sections 4.1.2.3 through 4.1.2.9
Theorem 1.2.3.4
Eq. (1.2.3.4)
Step 1.2.3.4
Lemma 1.2.3.4
§§ 1.2.3.4
Art. 1.2.3.4
Kap. 1.2.3.4
см. п. 1.2.3.4
раздел 1.2.3.4
iOS 1.2.3.4
snmpget OID=1.3.6.1
EC 1.2.3.4
EC number 3.4.21.4
enzyme (EC 1.1.1.1)
V1.2.3.4
版本 V1.2.3.4
最新版1.2.3.4
升级到1.2.3.4版本
第 1.2.3.4 条
バージョンは1.2.3.4です
ソフトウェア(Ver.1.2.3.4)
ファームウェア 1.2.3.4
버전은 1.2.3.4
Versión: 1.2.3.4
versão 1.2.3.4 ou 1.2.3.5
Version : 1.2.3.4
version-1.2.3.4
Version 1.2.3.4, released 2020
release 1.2.3.4-1.2.3.6
software version 1.2.3.4.
SNMPv2-SMI::enterprises.1.2.3.4
.1.3.6.1.2.1
Firefox 3.6.3.1
Thunderbird/3.1.2.3
Opera/9.8.7.6
Acrobat 9.1.2.3
kernel-5.4.0.42
Linux version 5.4.0.42
Ubuntu 5.4.0.42
Figs. 1.2.3.4 and 1.2.3.5
Table 1.2.3.4
Tab. 1.2.3.4
Chapter: 1.2.3.4
subsection 4.1.2.3
subclause 4.1.2.3
item 4.1.2.3
(see 4.1.2.3 Scope)
see section 4.1.2.3.
24.12.20.19
12:30:45:67 2020:10:10 ab:cd:ef:01:23:45
"""


def cases(table: str) -> list[str]:
    return table.strip().split("\n")


def in_place(case: str, placeholder) -> tuple[str, str, int]:
    """A text, what it becomes, and how many addresses it has."""
    found = re.findall("⟦(.*?)⟧", case)
    return re.sub("[⟦⟧]", "", case), re.sub("⟦(.*?)⟧", lambda each: placeholder(each[1]), case), len(found)


@pytest.mark.parametrize("case", cases(EMAILS) + cases(NO_EMAILS))
def test_of_emails_nothing_but_the_address_changes(case):
    text, wanted, number = in_place(case, lambda _: EMAIL)
    assert mask_emails(text) == (wanted, number)
    assert mask_emails(wanted) == (wanted, 0)


@pytest.mark.parametrize("case", cases(ADDRESSES) + cases(NO_ADDRESSES))
def test_of_public_addresses_nothing_but_the_address_changes(case):
    text, wanted, number = in_place(case, lambda address: IPV6 if ":" in address else IPV4)
    assert mask_addresses(text) == (wanted, number)
    assert mask_addresses(wanted) == (wanted, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x" * 300 + "@corp.io", "x" * 300 + "@corp.io"),
        ("jane@" + "a." * 200 + "io", "jane@" + "a." * 200 + "io"),
        ("jane@corp.io\nbob@corp.io", f"{EMAIL}\n{EMAIL}"),
        ('"two\nlines"@corp.io', '"two\nlines"@corp.io'),
    ],
)
def test_what_is_too_long_for_an_address_stays(text, wanted):
    assert mask_emails(text)[0] == wanted


ANY_TEXT = st.text(st.characters(exclude_characters="@＠﹫%", exclude_categories=["Cs"]), max_size=20)


@given(ANY_TEXT, st.sampled_from(' 请はไ한，「(<["\n|,;*'), st.sampled_from(' 请はไ한，」)>]"\n|,;*!?…:'), ANY_TEXT)
def test_around_a_planted_email_nothing_changes(before, opening, closing, after):
    assume("://" not in before)
    assume(closing != ":" or after[:1] not in ("~", "/"))
    before, after = before + opening, closing + after
    assert mask_emails(f"{before}jane.doe+x@mail.corp.io{after}") == (f"{before}{EMAIL}{after}", 1)


@given(
    st.text("请はไ한，。 \n!x(:", max_size=20),
    st.sampled_from(' 请はไ한，「(<["\n|,;*-'),
    st.text("请はไ한，。 \n!)", max_size=20),
)
def test_around_a_planted_address_nothing_changes(before, opening, after):
    before += opening
    for address, wanted in (("93.184.216.34", IPV4), ("2001:4860:4860::8888", IPV6)):
        assert mask_addresses(f"{before}{address}{after}") == (f"{before}{wanted}{after}", 1)


UNITS = [
    *("a", "@", "a@", "a@a@a@", "a@a.", "a.", "@a.a", "%", "%40", "a%40", "a＠a.", "é@é.io", "汉@a.io", "汉", '"', "-"),
    *("a@b.co ", "a@b.co", "{a,", "a}@", "{,}@a.io", "://a@b.co/", "+a=b.io@c.io", "a@git:", "\\@", "@a.io.X", "a@x-"),
    *("1.", "1.1.1.1.", "8.8.8.8 ", "8.8.8.8-", "1-1.1.1.1", "version 1.1.1.1, ", "3.3.3.3 and ", ":", "::", "2000:"),
    *("2000::", "2001:4860:4860::8888 ", "2::2:"),
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_grows_with_the_text(unit):
    """Quadratic would be minutes."""
    text = unit * (100_000 // len(unit)) + "@a.b 1.1.1.1"
    begin = time.process_time()
    mask_emails(text)
    mask_addresses(text)
    assert time.process_time() - begin < 2


def test_top_level_domains_are_those_of_the_public_suffix_list():
    """Read without tldextract, whose import takes long."""
    names = {name.rpartition(".")[2] for name in suffix_list().tlds}
    assert {name for name in top_level_domains() if not name.startswith("xn--")} == names
    assert {"xn--p1ai", "xn--fiqs8s", "com"} <= top_level_domains()


PARTS = [
    *"@.:- \n/0123af_%'\"{},\\=+&(请まй",
    *("é", "＠", "%40", "jane", "a.org", "A.It", ".com", "git", "://", "example.com"),
    *("8.8.8.8", "2607:f8b0::1", "::", "1.2", "version ", " and ", EMAIL, IPV4, IPV6),
]
PIECES = st.lists(
    st.sampled_from(PARTS),
    max_size=30,
)


@given(PIECES)
def test_masking_again_changes_nothing(pieces):
    for mask in (mask_emails, mask_addresses):
        once, _ = mask("".join(pieces))
        assert mask(once) == (once, 0)


@given(PIECES)
def test_what_is_looked_at_first_hides_no_address(pieces):
    text = "".join(pieces)
    found = mask_addresses(text)
    with pytest.MonkeyPatch.context() as patch:
        # Then every text is searched.
        patch.setattr(masks, "_DOTTED", re.compile(""))
        patch.setattr(masks, "_INNER_PARTS", 0)
        assert mask_addresses(text) == found


def test_clean_masks_text_and_title_and_counts():
    document = Document("http://a.org/jane@a.org", "Mail jane@a.org at 8.8.8.8. " * 3, {"title": "jane@a.org", "n": 1})
    stage, tally = Clean(language="any", min_tokens=0, mask=("email,ip",)), Tally()
    assert stage.mask == ("email", "ip")
    assert "tldextract" in stage.libraries
    judged = stage.judge_again(document, with_values=True)
    (kept,) = stage.process([document], tally)
    assert kept.text == f"Mail {EMAIL} at {IPV4}. " * 3
    assert (kept.url, kept.metadata) == ("http://a.org/jane@a.org", {"title": EMAIL, "n": 1})
    assert tally.notes == {"masked_email": 4, "masked_ip": 3}
    assert (judged.values["masked_email"], judged.values["masked_ip"], judged.values["repaired"]) == (3, 3, False)


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(UsageError, match="--mask phone is not known: choose among email, ip"):
        Clean(mask=("phone",))
